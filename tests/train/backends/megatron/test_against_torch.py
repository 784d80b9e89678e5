"""Every family, under every kind of parallelism, learns from forests as the torch trainer does.

The same loss, the same log-probabilities, and the same gradient everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, zeros_like

from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from tests.suite import pairs
from tests.train.backends.megatron import zoo
from tests.train.backends.megatron.batches import CLIP, distances, published, random_forests, run
from tests.train.backends.megatron.world import World

FORESTS = random_forests(seed=3)
FEW_HEADS = "moonlight of 2 heads"
"""What every head shares had a gradient that was not summed over ranks, where each rank has one head."""
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "TP2": {"tensor_parallel": 2, "sequence_parallel": False},
    "TP2 SP": {"tensor_parallel": 2, "sequence_parallel": True},
    "PP2": {"pipeline_parallel": 2},
    "PP2 interleaved": {"pipeline_parallel": 2, "virtual_pipeline": 2},
    "PP2 recomputed": {"pipeline_parallel": 2, "recompute": "full"},
    "CP2": {"context_parallel": 2},
    "CP2 recomputed": {"context_parallel": 2, "recompute": "full"},
    "DP2": {"ranks": 2},
    "EP2": {"expert_parallel": 2},
    "EP2 gathered": {"expert_parallel": 2, "moe": {"dispatcher": "allgather"}},
    "TP2 PP2": {"tensor_parallel": 2, "pipeline_parallel": 2},
    "TP2 SP CP2 recomputed": {
        **{"tensor_parallel": 2, "sequence_parallel": True},
        **{"context_parallel": 2, "recompute": "full"},
    },
    "TP2 SP EP2 DP2": {"tensor_parallel": 2, "expert_parallel": 2, "ranks": 4},
    "PP2 EP2 CP2": {"pipeline_parallel": 2, "expert_parallel": 2, "context_parallel": 2},
}
OF_ALL = ("one", "TP2", "TP2 SP", "PP2")
"""Of these every family is tried in every other one, and the next family in the rest, as on a chessboard; in all by
`python -m benchmarks.matrices`. Experts are not on tensor-parallel ranks that don't share the sequence: the layout
refuses them."""
MET = [
    (layout, case)
    for row, layout in enumerate(OF_ALL)
    for column, case in enumerate(zoo.CASES)
    if (pairs.whole or (row + column) % 2) and (layout != "TP2" or case not in zoo.EXPERT_CASES)
]
OF_SOME = [
    ("PP2 interleaved", "qwen3"),
    ("PP2 recomputed", "qwen3"),
    ("CP2", "smollm2"),
    ("CP2", "moonlight"),
    ("CP2 recomputed", "qwen3"),
    ("DP2", "smollm2"),
    ("EP2", "qwen3_moe"),
    ("EP2 gathered", "qwen3_moe"),
    ("TP2 SP", FEW_HEADS),
    ("TP2 PP2", "smollm2"),
    ("TP2 SP CP2 recomputed", "qwen3"),
    ("TP2 SP EP2 DP2", "glm4_moe"),
    ("PP2 EP2 CP2", "deepseek_v3"),
]
TRIED = [
    zoo.marked(case, layout)
    for layout in LAYOUTS  # one after another: ranks change their groups only between two
    for case in (*zoo.CASES, FEW_HEADS)
    if (layout, case) in (*OF_SOME, *MET)
]


@pytest.fixture(scope="module")
def folder_of(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A case's folder, by its name."""
    few = tmp_path_factory.mktemp("few")
    kind, settings = zoo.CASES["moonlight"]
    zoo.random_model(kind, {**settings, "num_attention_heads": 2, "num_key_value_heads": 2}).save_pretrained(few)
    return lambda case: few if case == FEW_HEADS else tiny(case)


Told = tuple[float, list[Tensor], dict[str, Tensor]]


@pytest.fixture(scope="module")
def torch_says(folder_of: Callable[[str], Path]) -> Callable[[str], Told]:
    """By a case's name, the torch trainer's loss, log-probabilities and gradients on `FORESTS`."""
    known: dict[str, Told] = {}

    def ask(case: str) -> Told:
        if case not in known:
            trainer = TorchTrainer(folder_of(case), algo=CLIP)
            logps = trainer.logprobs(FORESTS)
            loss = sum(trainer.backward(trainer.prepare(forest)) for forest in FORESTS)
            parameters = trainer.model.named_parameters()
            gradients = published({n: zeros_like(p) if p.grad is None else p.grad for n, p in parameters})
            known[case] = loss, logps, gradients
        return known[case]

    return ask


@pytest.mark.parametrize(("case", "layout"), TRIED)
@pytest.mark.slow
def test_loss_log_probabilities_and_every_gradient_are_those_of_the_torch_trainer(
    case: str, layout: str, world: World, folder_of: Callable[[str], Path], torch_says: Callable[[str], Told]
) -> None:
    loss, logps, want = torch_says(case)
    got = run(world, "gradients", folder_of(case), FORESTS, distributed_optimizer=False, **LAYOUTS[layout])
    assert got["loss"] == pytest.approx(loss, rel=1e-5, abs=1e-7)
    for ours, theirs in zip(got["logps"], logps, strict=True):
        assert float((ours - theirs).abs().max()) < 1e-4
    assert sum(1 for gradient in want.values() if gradient.norm() > 1e-4) > len(want) / 2, "most weights learn"
    assert not {name: far for name, far in distances(got["gradients"], want).items() if not far < 1e-5}
