"""Do the tensors in a folder's files make the whole model, and nothing else?

The names come from the files (safetensors or PyTorch's) and from the model that was built. What files may hold beside
the model is listed here: nothing else, whatever a model's class in transformers tolerates. Tied weights are stored
once, so transformers counts them as found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REBUILT = (
    r"(^|\.)(original_)?inv_freq$",  # angles of rotary embeddings
    r"(^|\.)position_ids$",
)
"""Tensors that a model computes from its configuration: files may hold or lack them."""
DROPPED = (*REBUILT, r"(^|\.)mtp(_layers?)?(\.|$)")
"""Tensors that files may hold beside a model's: layers that predict several tokens are not trained."""
TOWERS = (r"(^|\.)(visual|vision\w*|audio\w*)(\.|$)",)
"""Tensors of towers for images and sound."""
DROPPED_BY_ITS_CLASS = (
    *TOWERS,
    r"(^|\.)(attn|attention)\.(bias|masked_bias|causal_mask)$",  # masks in old checkpoints of GPT's kind
)
"""Tensors that files may hold where the model's class in transformers says that it has none."""
FLOATS = frozenset(("F64", "F32", "F16", "BF16"))
"""Types of weights, as safetensors calls them."""
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_SHOWN = 4


def find_packed(folder: Path) -> str:
    """The first weight in a folder's safetensors files that is no floating-point number of 16 bits or more, in words.

    transformers would widen such numbers, without the scales that give them their meaning.
    """
    for file in sorted(folder.glob("*.safetensors")):
        with open(file, "rb") as opened:
            header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
        for name, entry in header.items():
            if name.endswith("weight") and entry["dtype"] not in FLOATS and not _matches(DROPPED_BY_ITS_CLASS, name):
                return f"{name} has the type {entry['dtype']}"
    return ""


@dataclass(frozen=True, slots=True)
class TensorMatch:
    """The fit of the tensors in files to a model's.

    Attributes:
        missing: the model's that no file holds.
        unexpected: those in the files that the model has no place for.
        mismatched: name, shape in the files, and shape in the model.
    """

    missing: set[str]
    unexpected: set[str]
    mismatched: set[tuple[str, Any, Any]]

    def faults(self, model: Any) -> str:
        """Describe what is wrong, naming up to four tensors of each kind; '' where the files hold the whole model."""
        said = [
            _name("missing", (name for name in self.missing if not _matches(REBUILT, name))),
            _name("without a place in the model", (name for name in self.unexpected if not may_drop(name, model))),
            _name(
                "of another shape",
                (f"{name} {tuple(held)}, not {tuple(wanted)}" for name, held, wanted in self.mismatched),
            ),
            _name("other than the tensor that tie_word_embeddings ties it to", _list_untied(model)),
        ]
        return "; ".join(filter(None, said))


def _list_untied(model: Any) -> Iterable[str]:
    """The tensors that a configuration ties and transformers has not, since the files hold others: servers tie them."""
    tied = model.get_expanded_tied_weights_keys(all_submodels=True)
    return set(tied) - set(model.all_tied_weights_keys)


def may_drop(name: str, model: Any) -> bool:
    """Return whether a file may hold a tensor that the model has no place for."""
    if is_dropped(name, model.config.get_text_config()):
        return True
    left_out = model._keys_to_ignore_on_load_unexpected or ()
    return _matches(DROPPED_BY_ITS_CLASS, name) and _matches(left_out, name)


def stays_beside(name: str, config: Any) -> bool:
    """Return whether a tensor in a model's files belongs to a part that is neither trained nor computed."""
    return not _matches(REBUILT, name) and (is_dropped(name, config) or _matches(TOWERS, name))


def is_dropped(name: str, config: Any) -> bool:
    """Return whether no model of this configuration has a place for a tensor that its files may hold.

    Layers behind the last predict several tokens (DeepSeek V3, GLM 4.5), as many as the configuration says.
    """
    layer = _LAYER.search(name)
    behind = int(layer[1]) - config.num_hidden_layers if layer else -1
    return _matches(DROPPED, name) or 0 <= behind < (getattr(config, "num_nextn_predict_layers", None) or 0)


def _matches(patterns: Iterable[str], name: str) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


def _name(kind: str, names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"{kind}: {', '.join(found[:_SHOWN])}{more}" if found else ""
