"""A test that a model family computes the same on Megatron as in transformers, on a tiny random model.

The configuration is shrunk but keeps the architecture: biases, norms, tied embeddings, grouped heads, how
positions are scaled, how experts are chosen. transformers makes a random model of it and computes logits;
Megatron loads the same files, computes its own, and exports them again. Of the folder's own weights only the names
are compared with the family's table, so the check costs seconds however large the model is.

Without a GPU it changes this process for good (see `cpu`): run it in a process of its own.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train.trainers.megatron.models.family import Family

BOUND = 1e-5
"""Bound of the difference of logits in float32: a few hundred rounding errors."""

LAYERS, TOKENS, VOCABULARY = 4, 96, 97


@dataclass(frozen=True, slots=True)
class MegatronComparison:
    """The result.

    Attributes:
        family: the family that was checked.
        difference: the largest difference between two logits.
        largest: the largest logit of transformers'.
        tensors: how many tensors were exported.
        changed: those that differ from what was loaded, in any bit.
        names: how many of the folder's own tensor names were checked against the family's table; 0 without weights.
    """

    family: str
    difference: float
    largest: float
    tensors: int
    changed: tuple[str, ...]
    names: int

    @property
    def passed(self) -> bool:
        """True where logits agree and every tensor is exported unchanged."""
        return self.difference < BOUND and not self.changed

    def rows(self) -> list[tuple[str, str, str]]:
        """(what, found, wanted) rows for a table."""
        return [
            ("largest difference of logits", f"{self.difference:.2e}", f"below {BOUND:.0e}"),
            ("largest logit of transformers", f"{self.largest:.2f}", "not near 0"),
            ("tensors changed by loading and exporting", f"{len(self.changed)} of {self.tensors}", "0"),
            ("unknown names in the folder", f"0 of {self.names}" if self.names else "no weights there", "0"),
        ]


def check(folder: str | Path, family: str | None = None, seed: int = 0) -> MegatronComparison:
    """Compare the family of a folder's model with transformers.

    Raises:
        UnknownName: no such family.
        InvalidInput: the configuration, or the names of the folder's tensors, are unknown to the family.
    """
    from agentrl.train.trainers.megatron import cpu

    cpu.install()
    from agentrl.train.trainers.megatron.models.family import family_of, read_config
    from agentrl.train.trainers.megatron.models.images import with_images

    hf = read_config(folder, family)
    known = family_of(hf, family)
    known.refuse(hf)
    names = _known_names(Path(folder), with_images(known, folder), hf)
    with tempfile.TemporaryDirectory(prefix="check-") as scratch:
        want, tokens = _reference(shrink(hf, known), Path(scratch), seed)
        got, tensors, changed = _megatron(Path(scratch), known, tokens)
    difference = float((got[:, : want.shape[1]] - want).abs().max())
    return MegatronComparison(known.name, difference, float(want.abs().max()), tensors, changed, names)


def shrink(hf: Any, family: Family) -> Any:
    """A small configuration of the same kind."""
    from transformers import AutoConfig

    heads = 4
    per_group = hf.num_attention_heads // (getattr(hf, "num_key_value_heads", None) or hf.num_attention_heads)
    groups = heads // min(heads, per_group)
    settings = {
        **hf.to_dict(),
        "vocab_size": VOCABULARY,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "max_position_embeddings": 4 * TOKENS,
        "pad_token_id": None,
        "dtype": "float32",
        "rope_parameters": _shrunk_positions(hf.rope_parameters),
        **_few_kinds(hf),
        **_early(hf),
        **family.tiny(hf),
    }
    kind = settings.pop("model_type")
    return AutoConfig.for_model(kind, **settings)


def _few_kinds(hf: Any) -> dict[str, Any]:
    """Layers of every kind that the model has."""
    kinds = getattr(hf, "layer_types", None)
    if not kinds:
        return {}
    kept = [*kinds[:LAYERS], *[kinds[-1]] * (LAYERS - len(kinds))]
    missing = sorted(set(kinds) - set(kept))
    return {"layer_types": kept[: LAYERS - len(missing)] + missing}


def _early(hf: Any) -> dict[str, Any]:
    """Windows and caps, where there are any, that matter within the tokens that are tried and don't hide all else."""
    least = {"sliding_window": TOKENS // 4, "attn_logit_softcapping": 1.0, "final_logit_softcapping": 5.0}
    return {name: least[name] for name in least if getattr(hf, name, None)}


def _shrunk_positions(rope: dict[str, Any]) -> dict[str, Any]:
    """The same scaling, which begins to matter within the tokens that are tried."""
    if all(isinstance(each, dict) for each in rope.values()):  # one for each kind of layer
        return {kind: _shrunk_positions(each) for kind, each in rope.items()}
    if rope.get("original_max_position_embeddings"):
        return {**rope, "original_max_position_embeddings": TOKENS // 2}
    return dict(rope)


def _known_names(folder: Path, family: Family, hf: Any) -> int:
    from agentrl.train.trainers.megatron.models.reader import TensorReader

    if not any(folder.glob("model*.safetensors*")):
        return 0
    with TensorReader(folder) as reader:
        reader.check_known(family, hf)
        return reader.count


def _reference(hf: Any, folder: Path, seed: int) -> tuple[Tensor, Tensor]:
    """The logits of transformers for some tokens, of a random model that it leaves in the folder."""
    import torch
    from transformers.utils import logging

    from agentrl.models.loading import new_causal_lm

    model = new_causal_lm(hf, torch.float32, "eager").eval()
    randomise(model, seed)
    tokens = torch.randint(0, hf.vocab_size, (TOKENS,), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        logits = model(tokens[None]).logits[0]
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    return logits, tokens


def randomise(model: Any, seed: int = 0) -> None:
    """Make every tensor of a model random, biases and corrections too, and large enough to matter."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                noise = torch.randn(tensor.shape, generator=generator)
                tensor.copy_(1 + 0.3 * noise if "norm" in name else 0.1 * noise)


def _megatron(folder: Path, family: Family, tokens: Tensor) -> tuple[Tensor, int, tuple[str, ...]]:
    """Megatron's logits for the same files, how many tensors it exports, and which of them differ."""
    import torch
    from safetensors.torch import load_file

    from agentrl.train.trainers.megatron.models.assembly import build
    from agentrl.train.trainers.megatron.models.family import read_config
    from agentrl.train.trainers.megatron.models.weights import export, load

    with _single_rank(folder):
        (model,) = build(family, read_config(folder, family))
        device = model.decoder.final_layernorm.weight.device
        load([model], folder, family)
        with torch.no_grad():
            logits = model.eval()(tokens[None].to(device), None, None)[0].cpu()
        written = load_file(folder / "model.safetensors")
        exported = {name: tensor.cpu() for name, tensor in export([model], family)}
    same = {n for n in written.keys() & exported.keys() if torch.equal(written[n], exported[n])}
    return logits, len(exported), tuple(sorted((written.keys() | exported.keys()) - same))


@contextlib.contextmanager
def _single_rank(folder: Path) -> Iterator[None]:
    """Megatron's parallel state with this process alone."""
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state

    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
    try:
        parallel_state.initialize_model_parallel()
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
