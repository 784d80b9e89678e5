"""Score models: a language model's layers under a linear head of scores, as Hugging Face has them.

They are transformers' classes for sequence classification (a score at a path's last token) and token classification
(one at chosen tokens), so that any program that loads such a folder reads the same scores. A language model becomes one
by dropping its head; the new head is drawn from the seed. A folder that is one already keeps its head.

transformers reads a sequence's score at its last token that is not the padding token. So a score model's padding token
is never one that ends a turn; where no other is known it has none, and such a folder is read a row at a time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentrl.errors import InvalidInput, InvalidWeights
from agentrl.models import loading

HEAD = "score"
"""The name of the head in these classes."""
_LANGUAGE_HEAD = "lm_head."
SETTINGS = "agentrl_scores"
"""The entry in `config.json` of models that are trained here; what is in it says how they are read."""
SPREAD = 0.02
"""Standard deviation of a new head's weights, where the model's configuration has none."""


@dataclass(frozen=True, slots=True)
class ScoreHead:
    """A linear head of scores in place of a language model's.

    Attributes:
        labels: the names of its outputs: one score, or the logits of several classes.
        per_token: scores are read at chosen tokens (token classification), not at the end of a path.
        separator: the text whose last token such a score is read at.
    """

    labels: tuple[str, ...]
    per_token: bool = False
    separator: str = ""

    @property
    def classes(self) -> bool:
        """True where the outputs are logits of classes."""
        return len(self.labels) > 1


def load_score_model(folder: Path, head: ScoreHead, dtype: Any, attention: str, seed: int = 0) -> Any:
    """The score model of a Hugging Face folder: one that it holds already, or its language model with a new head.

    Raises:
        InvalidWeights: a tensor of its layers is missing or has another shape, or the folder's head has other outputs.
        InvalidInput: transformers has no score model of this kind.
    """
    config = loading.loadable_config(folder)
    kind = _model_class(folder, config, per_token=head.per_token)
    for name, value in score_settings(folder, head).items():
        setattr(config, name, value)
    model, found = loading.load_with_match(lambda: kind, folder, config, dtype, attention)
    own = {name for name in found.missing if name.startswith(f"{HEAD}.")}
    others = {name for name in found.unexpected if name.startswith(_LANGUAGE_HEAD)}
    rest = replace(found, missing=found.missing - own, unexpected=found.unexpected - others)
    if faults := rest.faults(model):
        raise InvalidWeights(
            f"model={str(folder)!r}: its files don't hold the layers of a score model with {len(head.labels)} outputs: "
            f"{faults}"
        )
    if own:
        _begin_head(model, config, seed, own)
    return model


def score_settings(folder: Path, head: ScoreHead) -> dict[str, Any]:
    """Return what the configuration of a folder's score model has beside, or in place of, that of the folder's model.

    Raises:
        InvalidInput: transformers has no score model of this kind, or one without a linear head of this name.
    """
    config = loading.loadable_config(folder)
    kind = _model_class(folder, config, per_token=head.per_token)
    return {
        "architectures": [kind._model_mapping[type(config)].__name__],
        "id2label": dict(enumerate(head.labels)),
        "label2id": {name: number for number, name in enumerate(head.labels)},
        "problem_type": "single_label_classification" if head.classes else "regression",
        SETTINGS: {"separator": head.separator} if head.per_token else {"read": "end of the last turn"},
        "pad_token_id": padding_token(folder, config),
    }


def draw_head(labels: int, width: int, config: Any, seed: int) -> Any:
    """Return a new head's weight, [labels, width], normal in float32; its bias begins at 0."""
    import torch

    drawn = torch.Generator().manual_seed(seed)
    spread = getattr(config.get_text_config(), "initializer_range", None) or SPREAD
    return torch.randn((labels, width), generator=drawn) * spread


def read_score_model(folder: Path, dtype: Any, *, per_token: bool = False) -> Any:
    """The score model that a folder holds, all of whose weights are from its files.

    Raises:
        InvalidWeights: a tensor is missing, such as the head's of a language model.
        InvalidInput: the folder holds no such model.
    """
    config = loading.loadable_config(folder)
    kind = _model_class(folder, config, per_token=per_token)
    model, found = loading.load_with_match(lambda: kind, folder, config, dtype, "sdpa")
    if faults := found.faults(model):
        raise InvalidWeights(f"model={str(folder)!r} holds no whole score model: {faults}")
    return model


def parameters(folder: Path) -> int:
    """Return the number of weights in a folder's safetensors files, from their headers."""
    found = 0
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
        found += sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    return found


def is_per_token(folder: Path) -> bool:
    """Return whether a folder holds a model for token classification, by its configuration."""
    names = getattr(loading.read_config(folder), "architectures", None) or ()
    return any(name.endswith("ForTokenClassification") for name in names)


def padding_token(folder: Path, config: Any) -> int | None:
    """A token that pads rows and never ends a turn; None where none is known."""
    ends = _as_ids(getattr(config, "eos_token_id", None))
    known = [getattr(config, "pad_token_id", None), *_special_tokens(folder)]
    return next((int(token) for token in known if token is not None and token not in ends), None)


def _special_tokens(folder: Path) -> list[int]:
    """A tokenizer's padding token and then its other special ones, but for the one that ends texts."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception:  # a folder without a tokenizer, or with one of its own code
        return []
    found = [tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.unk_token_id, *tokenizer.all_special_ids]
    return [token for token in found if token is not None and token != tokenizer.eos_token_id]


def _as_ids(value: Any) -> Iterable[int]:
    return () if value is None else value if isinstance(value, list | tuple) else (value,)


def _model_class(folder: Path, config: Any, *, per_token: bool) -> Any:
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    kind: Any = AutoModelForTokenClassification if per_token else AutoModelForSequenceClassification
    if type(config) not in kind._model_mapping:
        raise InvalidInput(
            f"model={str(folder)!r}: transformers has no {kind.__name__} of model_type={config.model_type!r}, so there "
            "is no score model of it"
        )
    return kind


def _begin_head(model: Any, config: Any, seed: int, missing: Set[str]) -> None:
    """Give a head what its folder lacks: drawn weights, and a bias of 0; a classifier of sequences has no bias."""
    import torch

    head = getattr(model, HEAD, None)
    if not isinstance(head, torch.nn.Linear):
        raise InvalidInput(f"{type(model).__name__} has no linear head named {HEAD!r}, which is trained and read here")
    with torch.no_grad():
        if f"{HEAD}.weight" in missing:
            head.weight.copy_(draw_head(head.out_features, head.in_features, config, seed))
        if head.bias is not None:
            head.bias.zero_()
