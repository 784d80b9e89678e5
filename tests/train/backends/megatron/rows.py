"""What transformers' eager rows say of forests, by the names that tensors have in files; and how far Megatron is."""

from __future__ import annotations

import functools
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from agentrl.models.loading import load_causal_lm
from agentrl.train.trainers.reference import compute_rows, random_forest
from tests.train.backends.megatron import zoo
from tests.train.backends.megatron.batches import distances, run
from tests.train.backends.megatron.world import World

LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "TP2": {"tensor_parallel": 2, "sequence_parallel": False},
    "TP2 SP": {"tensor_parallel": 2, "sequence_parallel": True},
    "PP2": {"pipeline_parallel": 2},
    "CP2": {"context_parallel": 2},
    "EP2": {"expert_parallel": 2, "ranks": 2},
    "TP2 EP2": {"tensor_parallel": 2, "expert_parallel": 2},
}
FOREST = random_forest(random.Random(5), zoo.VOCABULARY)


def possible(case: str, layout: str) -> bool:
    """Whether a case's model can be trained in a layout."""
    experts = "num_experts_per_tok" in zoo.MORE[case][1]
    if case == "gpt_oss" and layout == "TP2 SP":  # its experts' biases can't be cut
        return False
    return layout != "TP2" if experts else "EP2" not in layout


@dataclass(frozen=True, slots=True)
class Apart:
    """How far Megatron is from eager rows.

    Attributes:
        logp: the largest difference of log-probabilities, in nats.
        gradient: the largest difference of a parameter's gradients, as a share of its length.
        where: that parameter.
        changed: tensors that were not exported bit for bit as they were loaded.
        learning: the share of parameters that have a gradient at all.
    """

    logp: float
    gradient: float
    where: str
    changed: list[str]
    learning: float


@functools.cache
def truth(folder: Path) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probabilities [T] of `FOREST`, and gradients as a folder of the model would hold them."""
    model: Any = load_causal_lm(folder, torch.float32, "eager").eval()
    found = compute_rows(model, FOREST, "cpu")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(found.gradients.get(name, torch.zeros_like(parameter)))
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        return found.logp, load_file(f"{scratch}/model.safetensors")


def compare(world: World, folder: Path, layout: str) -> Apart:
    """Run `FOREST` through a folder's model on Megatron, in one of `LAYOUTS`."""
    logp, want = truth(folder)
    got = run(world, "family", folder, [FOREST], distributed_optimizer=False, **LAYOUTS[layout])
    far = distances(got["gradients"], want)
    where = max(far, key=lambda name: far[name])
    written = load_file(folder / "model.safetensors")
    names = written.keys() | got["weights"].keys()
    same = {name for name in written.keys() & got["weights"].keys() if torch.equal(written[name], got["weights"][name])}
    learning = sum(1 for gradient in want.values() if gradient.norm() > 1e-4) / len(want)
    return Apart(float((got["logps"][0] - logp).abs().max()), far[where], where, sorted(names - same), learning)


def main() -> None:
    """Every case in every layout: `python -m tests.train.backends.megatron.rows [CASE...]`."""
    import sys

    from tests.train.backends.megatron.world import open_world

    with open_world() as world, tempfile.TemporaryDirectory() as scratch:
        for case in sys.argv[1:] or zoo.MORE:
            folder = zoo.write(case, Path(scratch) / case)
            for layout in LAYOUTS:
                if possible(case, layout):
                    found = compare(world, folder, layout)
                    print(f"{case:16} {layout:7} {found}", flush=True)


if __name__ == "__main__":
    main()
