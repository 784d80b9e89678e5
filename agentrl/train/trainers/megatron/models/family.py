"""A family: what a Hugging Face configuration means to Megatron, and which parameter is cut from which tensor.

Adding one is one file with a `Family`: given by import path, made known by `register`, or an installed package's entry
point in the group `agentrl.families`. See docs/decisions/archive/070-model-tables.md for the why.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import InvalidInput, unknown_name
from agentrl.models.loading import loadable_config
from agentrl.models.vision_families import FAMILIES as SEEING
from agentrl.registry import Registry
from agentrl.train.trainers.megatron.models.layouts import ParameterLayout
from agentrl.train.trainers.megatron.models.rotary import Rotary
from agentrl.train.trainers.megatron.settings import TOWERS


@dataclass(frozen=True)
class Family:
    """One row of families.

    Attributes:
        name: what it is called here.
        model_types: the `model_type`s of config.json that it serves. The first is transformers' own, and reads
            the configurations of the others, which may come with code of their own that is not run.
        settings: fields of Megatron's TransformerConfig that differ from `assembly.COMMON`.
        rotary: positions: one for all layers, or one for each, None where nothing is rotated.
        layer: names within a layer ("self_attention.linear_qkv.weight") to layouts; the tables of `tables`.
        outside: the same for what lies outside of layers.
        refuse: raises InvalidInput for what the family can't express; `build` calls it first.
        windows: how far along its path each layer's attention sees, None for all of it.
        softcap: what attention's scores are capped at; see `agentrl.train.trainers.attention.AttentionPlan`.
        pre_norms: what attention and MLP are given is normed.
        post_norms: attention and MLP outputs are normed before they are added.
        wide_norms: queries and keys are normed over all heads together; Megatron's `qk_layernorm` norms each head.
        embedding: what embeddings are multiplied with.
        residual: what attention and MLP outputs are multiplied with before they are added.
        tiny: what makes a configuration of the kind small, besides `check.shrink`'s own settings.
    """

    name: str
    model_types: tuple[str, ...]
    settings: Callable[[Any], dict[str, Any]]
    rotary: Callable[[Any], Rotary | Sequence[Rotary | None]]
    layer: Mapping[str, ParameterLayout]
    outside: Mapping[str, ParameterLayout]
    refuse: Callable[[Any], None] = lambda hf: None
    windows: Callable[[Any], Sequence[int | None]] = lambda hf: [None] * hf.num_hidden_layers
    softcap: Callable[[Any], float | None] = lambda hf: None
    pre_norms: bool = True
    post_norms: bool = False
    wide_norms: bool = False
    embedding: Callable[[Any], float] = lambda hf: 1.0
    residual: Callable[[Any], float] = lambda hf: 1.0
    tiny: Callable[[Any], dict[str, Any]] = lambda hf: {}


_HERE = "agentrl.train.trainers.megatron.models.families"

FAMILIES: Registry[Family] = Registry(
    "model family",
    "trainer.family",
    "agentrl.families",
    {
        "llama": f"{_HERE}.llama:LLAMA",
        "smollm3": f"{_HERE}.llama:SMOLLM3",
        "mistral": f"{_HERE}.mistral:MISTRAL",
        "mixtral": f"{_HERE}.mistral:MIXTRAL",
        "phi3": f"{_HERE}.phi:PHI3",
        "granite": f"{_HERE}.granite:GRANITE",
        "gemma": f"{_HERE}.gemma:GEMMA",
        "gemma2": f"{_HERE}.gemma:GEMMA2",
        "gemma3_text": f"{_HERE}.gemma:GEMMA3",
        "olmo2": f"{_HERE}.olmo:OLMO2",
        "olmo3": f"{_HERE}.olmo:OLMO3",
        "olmoe": f"{_HERE}.olmo:OLMOE",
        "gpt_oss": f"{_HERE}.gpt_oss:GPT_OSS",
        "qwen2": f"{_HERE}.qwen:QWEN2",
        "qwen2_moe": f"{_HERE}.qwen:QWEN2_MOE",
        "qwen3": f"{_HERE}.qwen:QWEN3",
        "qwen3_moe": f"{_HERE}.qwen:QWEN3_MOE",
        "glm4": f"{_HERE}.glm:GLM4",
        "glm4_moe": f"{_HERE}.glm:GLM4_MOE",
        "deepseek_v3": f"{_HERE}.deepseek:DEEPSEEK",
    },
    accept=lambda found: found if isinstance(found, Family) else None,
)


def register(family: Family) -> Family:
    """Make a family known by its name and its model types; of a type that several serve the last one is meant."""
    FAMILIES.register(family.name, family)
    return family


def family_of(hf: Any, name: str | None = None) -> Family:
    """The family of a Hugging Face configuration, by its `model_type`; or the one that `name` says.

    Args:
        hf: a configuration, as `read_config` gives it.
        name: a family's name, an import path or a model type, for models that no family serves.

    Raises:
        UnknownName: no family has that name or serves that type.
        ConfigError: importing what is named fails, or it is no family.
    """
    if name is not None and (":" in name or name in FAMILIES.known()):
        return FAMILIES.find(name)
    wanted = str(hf.model_type) if name is None else name
    families = FAMILIES.available()
    types = {kind: family for family in families.values() for kind in family.model_types}
    if wanted not in types:
        raise unknown_name("model family", wanted, {**families, **types})
    return types[wanted]


def read_config(folder: str | Path, family: Family | str | None = None) -> Any:
    """A folder's configuration, by transformers' own class and never by code that the folder brings.

    Of a model that sees it is its text model's.

    Args:
        folder: where config.json is.
        family: the family, its name or import path, where the `model_type` does not say it.

    Raises:
        InvalidInput: no config.json, or one that cannot be read, or there is no place for its tower.
        UnknownName: no family serves its `model_type`.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    path = Path(folder) / "config.json"
    try:
        settings = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from None
    kind = str(settings.get("model_type", ""))
    if kind in SEEING:
        return _text_config(Path(folder), kind)
    known = family if isinstance(family, Family) else family_of(None, family or kind)
    for foreign in ("auto_map", "model_type", "quantization_config"):
        settings.pop(foreign, None)
    try:
        return AutoConfig.for_model(known.model_types[0], **settings)
    except (ValueError, StrictDataclassError) as error:  # its message lists some hundred names
        raise InvalidInput(f"{path} is no configuration of {known.model_types[0]!r}: {str(error)[:200]}") from None


def _text_config(folder: Path, kind: str) -> Any:
    """The configuration of the text model of one that sees."""
    require_tower(kind)
    config = loadable_config(folder, seeing=True)
    text = config.get_text_config()
    text.tie_word_embeddings = config.tie_word_embeddings
    return text


def require_tower(kind: str) -> None:
    """Refuse a `model_type` of models that see which has no place for its tower."""
    if kind in SEEING and kind not in TOWERS:
        raise InvalidInput(
            f"model_type={kind!r} sees images, and trainer=megatron has a place for the tower of "
            f"{' and '.join(TOWERS)} only: use trainer=torch or trainer=fsdp"
        )


def require(hf: Any, **allowed: Any) -> None:
    """Refuse a configuration whose fields have other values than those that the family can express.

    Args:
        hf: the configuration.
        allowed: for each field the value, or a tuple of values, that it may have.
    """
    for name, values in allowed.items():
        values = values if isinstance(values, tuple) else (values,)
        value = getattr(hf, name, values[0])
        if value not in values:
            options = " or ".join(map(repr, values))
            raise InvalidInput(f"{hf.model_type}: {name}={value!r} is not supported, only {options}")


def window_everywhere(hf: Any) -> list[int | None]:
    """A window in every layer, where the configuration has one at all: Mistral, Phi-3."""
    return [getattr(hf, "sliding_window", None) or None] * hf.num_hidden_layers


def window_by_kind(hf: Any) -> list[int | None]:
    """A window in the layers whose `layer_types` say so.

    Raises:
        InvalidInput: a layer of another kind.
    """
    kinds = getattr(hf, "layer_types", None) or ["full_attention"] * hf.num_hidden_layers
    if unknown := sorted(set(kinds) - {"full_attention", "sliding_attention"}):
        raise InvalidInput(
            f"{hf.model_type}: layer_types={unknown} are not supported, only 'full_attention' and 'sliding_attention'"
        )
    return [hf.sliding_window if kind == "sliding_attention" else None for kind in kinds]
