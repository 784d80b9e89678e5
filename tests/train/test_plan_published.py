"""Plans against the times that NeMo RL 0.4 publishes for GRPO on DGX H100 (docs/decisions/archive/363)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentrl.train.plan.layouts import Candidate, PlanConfig, rank_layouts
from agentrl.train.plan.memory import GIB, Numbers, Split, engine_memory
from agentrl.train.plan.shapes import KNOWN, Shape
from agentrl.train.plan.step import generate_seconds, publish_seconds, train_seconds

PAGE = Path(__file__).parents[2] / "docs" / "decisions" / "archive" / "363-plans-are-held-against-published-times.md"
WITHIN = 1.5
PROMPT = 150


@dataclass(frozen=True)
class Published:
    """A row: GPUs in nodes of eight, sessions with their mean and largest length, the layout, seconds of a step."""

    model: str
    shape: Shape
    nodes: int
    sessions: int
    mean: int
    most: int
    engine: int
    split: Split
    seconds: float
    staleness: int = 0
    recompute: bool = True

    @property
    def plan(self) -> PlanConfig:
        return PlanConfig.model_validate(
            {
                "model": self.model,
                "nodes": self.nodes,
                "sessions": self.sessions,
                "prompt": PROMPT,
                "sampled": self.mean - PROMPT,
                "longest": self.most - PROMPT,
                "batch": 1024,
                "forwards": 2,
                "staleness": self.staleness,
            }
        )

    @property
    def first(self) -> Candidate:
        return rank_layouts(self.shape, self.plan, self.plan.described)[0]

    def own_seconds(self) -> float:
        """What the formulas have for the published layout, whose trainer and engines take turns on the same GPUs."""
        plan, ranks = self.plan, self.engine
        engine = engine_memory(self.shape, ranks, 2, plan.memory * GIB)
        engines = self.nodes * plan.gpus // ranks
        numbers = Numbers(recompute=self.recompute)
        parts = generate_seconds(self.shape, engine, engines, ranks, plan.work, plan.rates)
        parts += train_seconds(self.shape, self.split, numbers, plan.work, plan.rates, plan.token_budget, plan.gpus)
        return parts + publish_seconds(2 * self.shape.parameters, plan.rates, across=True)

    @property
    def row(self) -> str:
        """It in the decision's table."""
        split = self.split
        experts = f", {split.expert}" if split.expert > 1 else ""
        layout = f"{self.engine}, {split.tensor} x {split.pipeline} x {split.context}{experts}"
        own = "" if self.staleness else f"{self.own_seconds():.0f}"
        stale = ", staleness 1" if self.staleness else ""
        lengths = f"{self.sessions:,}, {self.mean:,}, {self.most:,}"
        times = f"{self.seconds:g} | {own} | {self.first.time.total:.0f}"
        return f"| {self.model}{stale} | {8 * self.nodes} | {lengths} | {layout} | {times} |"


LLAMA = Shape("llama", 4096, 32, 32, 8, 128, 14336, 128256, tie_word_embeddings=False)
DENSE = Shape("qwen3", 5120, 64, 64, 8, 128, 25600, 151936, tie_word_embeddings=False)
SMALL, LARGE = KNOWN["qwen3-30b-a3b"], KNOWN["qwen3-235b-a22b"]
ROWS = [
    Published("Llama-3.1-8B", LLAMA, 2, 2048, 1060, 4096, 1, Split(1, 2, data=8), 97.7),
    Published("Qwen3-30B-A3B", SMALL, 4, 2048, 3154, 4096, 4, Split(2, expert=8, data=16), 225, recompute=False),
    Published("Qwen3-235B-A22B", LARGE, 16, 512, 5671, 8192, 16, Split(2, 8, 2, 16, 4), 506),
    Published("Qwen3-32B", DENSE, 4, 2048, 3206, 4096, 4, Split(4, 4, data=2), 393),
    Published("Llama-3.1-8B", LLAMA, 2, 2048, 1129, 4096, 1, Split(1, 2, data=4), 74.6, staleness=1),
    Published("Qwen3-30B-A3B", SMALL, 4, 2048, 3158, 4096, 2, Split(1, 2, expert=8, data=8), 244, staleness=1),
    Published("Qwen3-235B-A22B", LARGE, 32, 512, 5691, 8192, 8, Split(4, 8, expert=16, data=4), 241, staleness=1),
    Published("Qwen3-32B", DENSE, 8, 2048, 3207, 4096, 4, Split(4, 4, data=2), 215, staleness=1),
]


def near(seconds: float, published: float) -> bool:
    return published / WITHIN <= seconds <= published * WITHIN


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.model}-{row.staleness}")
def test_the_first_layout_takes_what_the_published_one_took_within_a_factor(row: Published) -> None:
    assert near(row.first.time.total, row.seconds)
    assert row.staleness or near(row.own_seconds(), row.seconds)
    assert row.row in PAGE.read_text(), row.row


@pytest.mark.slow
def test_first_layouts_are_such_as_people_run() -> None:
    """Engines of four GPUs came first for 0.6 B and of eight for 8 B, training of 30B-A3B in eight stages, and mixed
    layouts, which are the hardest to run."""
    first = {}
    for name, nodes in (("qwen3-0.6b", 1), ("qwen3-8b", 2), ("qwen3-30b-a3b", 4)):
        plan = PlanConfig(model=name, nodes=nodes, show=1)
        (first[name],) = rank_layouts(KNOWN[name], plan, plan.described)
    assert first["qwen3-0.6b"].ranks == first["qwen3-8b"].ranks == 1
    assert first["qwen3-30b-a3b"].ranks in (2, 4)
    assert max(each.split.pipeline for each in first.values()) <= 2
    assert not any(each.layout == "mixed" or each.numbers.offloaded for each in first.values())


def test_a_longer_tail_and_a_slower_network_never_make_a_step_shorter() -> None:
    plan = PlanConfig(model="qwen3-30b-a3b", nodes=2, show=1)
    times = []
    for change in ({}, {"longest": 8192}, {"longest": 8192, "network": 50.0}):
        changed = plan.model_copy(update=change)
        times.append(rank_layouts(SMALL, changed, changed.described)[0].time.total)
    assert times == sorted(times)


def test_the_decision_has_no_row_that_is_not_held() -> None:
    rows = re.findall(r"^\| (?:Llama|Qwen).*$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == len(ROWS)
