"""Facts on a model from its Hugging Face folder, without loading it and without torch.

Engines in other processes must know a model's limits before their server is up, and which tensors a publication
has to bring before anything is sent.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.common.scratch import ScratchFolder
from agentrl.errors import EngineError, InvalidInput, nearest, require_extra
from agentrl.models.sizes import with_usual_names

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Experts:
    """A model's mixtures of experts.

    Attributes:
        count: experts of a layer that has some, shared ones aside.
        topk: how many of them a token goes to.
        sparse: the places, from 0 on, of the layers that have some.
        layers: how many layers there are, the others included.
    """

    count: int
    topk: int
    sparse: tuple[int, ...]
    layers: int

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Experts | None:
        """Read a configuration, in the words of the families that there are; None for a dense model."""
        names = ("num_experts", "n_routed_experts", "num_local_experts")
        count = next((int(config[name]) for name in names if config.get(name)), 0)
        topk, layers = int(config.get("num_experts_per_tok") or 0), int(config.get("num_hidden_layers") or 0)
        sparse = tuple(layer for layer in range(layers) if _is_sparse(config, layer))
        return cls(count, topk, sparse, layers) if count and topk and sparse else None


def _is_sparse(config: Mapping[str, Any], layer: int) -> bool:
    kinds, frequency = config.get("mlp_layer_types"), config.get("moe_layer_freq") or 1
    if kinds:
        return bool(kinds[layer] == "sparse")
    every = frequency[layer] if isinstance(frequency, list) else layer % frequency == 0
    return (
        bool(every)
        and layer >= (config.get("first_k_dense_replace") or 0)
        and layer not in (config.get("mlp_only_layers") or ())
        and (layer + 1) % (config.get("decoder_sparse_step") or 1) == 0
    )


def _size(path: Path, config: Mapping[str, Any], name: str) -> int:
    found = config.get(name)
    if isinstance(found, int) and found > 0:
        return found
    what = f"config.json has no {name}" if found is None else f"config.json has {name}={found!r}"
    raise InvalidInput(f"model={str(path)!r}: {what}; it is a positive integer")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The content of a folder's `config.json`.

    Attributes:
        path: the folder.
        vocab_size: rows of its embedding.
        context: tokens of the longest path that it was made for.
        kv_values: numbers that one token adds to the cache of keys and values.
        tied: whether the head is the embedding.
        experts: its mixtures of experts, where it has some.
    """

    path: Path
    vocab_size: int
    context: int
    kv_values: int
    tied: bool
    experts: Experts | None = None

    @classmethod
    def read(cls, path: Path) -> ModelFacts:
        """Read a folder.

        Raises:
            EngineError: there is no readable `config.json`.
            InvalidInput: it lacks the vocabulary or the context.
        """
        try:
            whole: dict[str, Any] = json.loads((path / "config.json").read_text())
        except (OSError, ValueError) as error:
            raise EngineError(f"can't load a model from {str(path)!r}: {error}") from None
        config = with_usual_names(whole)
        vocab, context = (_size(path, config, name) for name in ("vocab_size", "max_position_embeddings"))
        heads = config.get("num_attention_heads") or 1
        width = config.get("head_dim") or (config.get("hidden_size") or 0) // heads
        layers, kv_heads = config.get("num_hidden_layers") or 0, config.get("num_key_value_heads") or heads
        tied, kv_values = (
            bool(whole.get("tie_word_embeddings", config.get("tie_word_embeddings"))),
            2 * layers * kv_heads * width,
        )
        return cls(path, vocab, context, kv_values, tied, Experts.read(config))

    def kv_bytes(self, dtype: str) -> int:
        """Bytes that one token adds to the cache."""
        return self.kv_values * _BYTES[dtype]


def tensors(path: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in a folder's safetensors files, from their headers alone.

    Raises:
        EngineError: there are none, or one is damaged.
    """
    found: dict[str, tuple[int, ...]] = {}
    for file in sorted(path.glob("*.safetensors")):
        try:
            with open(file, "rb") as data:
                header = json.loads(data.read(int.from_bytes(data.read(8), "little")))
        except (OSError, ValueError, MemoryError, OverflowError) as error:
            raise EngineError(f"{file} is no safetensors file: {error}") from None
        found |= {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    if not found:
        raise EngineError(f"{path} holds no *.safetensors file")
    return found


def check_tensors(given: Mapping[str, Iterable[int]], expected: Mapping[str, tuple[int, ...]], tied: bool) -> None:
    """Make sure that a publication brings a model's tensors, all of them and no others.

    Args:
        given: name and shape of what it brings.
        expected: what the model's own folder holds.
        tied: whether `lm_head.weight` may come or be missing, since it is the embedding.

    Raises:
        EngineError: a name is unknown or missing, or a shape differs; the message names the first.
    """
    optional = {"lm_head.weight"} if tied else set()
    for name, shape in given.items():
        if name not in expected:
            if name in optional:
                continue
            guess = nearest(name, expected)
            hint = f"; nearest: {guess!r}" if guess else ""
            raise EngineError(f"weights hold {name!r}, which the model lacks{hint}")
        if tuple(shape) != expected[name]:
            raise EngineError(f"weights hold {name!r} of shape {tuple(shape)}, not {expected[name]}")
    missing = [name for name in expected if name not in given and name not in optional]
    if missing:
        rest = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise EngineError(f"weights lack {', '.join(map(repr, missing[:3]))}{rest}")


@contextlib.contextmanager
def write_model(facts: ModelFacts, weights: Iterable[tuple[str, Any]]) -> Iterator[Path]:
    """A temporary folder with these weights and the model's own configuration and tokenizer.

    Raises:
        EngineError: a name is unknown, given twice or missing, or a shape differs.
    """
    with require_extra("train", "safetensors"):
        from safetensors.torch import save_file
    expected = tensors(facts.path)
    given: dict[str, Any] = {}
    for name, tensor in weights:
        if name in given:
            raise EngineError(f"weights name {name!r} twice")
        given[name] = tensor
    check_tensors({name: tensor.shape for name, tensor in given.items()}, expected, facts.tied)
    with ScratchFolder() as folder:
        for file in facts.path.iterdir():
            weights_of = file.suffix in (".safetensors", ".bin") or file.name.endswith(".index.json")
            if file.is_file() and not weights_of:
                shutil.copy(file, folder)
        kept = {name: given[name].detach().contiguous().cpu() for name in expected if name in given}
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
        yield folder
