"""The expected time of a step, and what moves meanwhile: from rates that are given or measured, not from a run.

Generating is bound by reading weights and caches, or by arithmetic where batches are large; training by arithmetic,
plus the exchanges of tensor, expert and data parallelism. No time of a cluster was there to hold them against: they are
to compare layouts with each other.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from agentrl.train.plan.memory import EngineMemory, Numbers, Split, own_parameters
from agentrl.train.plan.shapes import Shape

FOREST_BYTES = 64
"""A token of a forest with its log-probabilities, advantages and places, roughly."""
SESSION_BYTES = 16
"""A token of a pickled session, roughly: 14 in one of 16,000 tokens with their text, 51 in one of 90."""


@dataclass(frozen=True)
class Rates:
    """What a device and its links do each second; the defaults are an H100's data sheet (SXM, dense bfloat16).

    Attributes:
        tflops: arithmetic, in 10^12 operations.
        memory: reading memory, in GB.
        link: between devices of a node, each way, in GB.
        network: between nodes, each way for a node, in GB.
        trained: the part of the arithmetic that training reaches.
        generated: the part of either rate that generating reaches.
    """

    tflops: float = 989.0
    memory: float = 3350.0
    link: float = 450.0
    network: float = 50.0
    trained: float = 0.4
    generated: float = 0.5


@dataclass(frozen=True)
class Work:
    """A step's work.

    Attributes:
        sessions: how many there are.
        prompt: tokens of a session that it does not sample.
        sampled: tokens that it samples.
        batch: the most sequences that an engine decodes at once.
    """

    sessions: int = 512
    prompt: int = 2048
    sampled: int = 2048
    batch: int = 256

    @property
    def length(self) -> int:
        """Tokens of a session."""
        return self.prompt + self.sampled

    @property
    def tokens(self) -> int:
        """Tokens of all sessions."""
        return self.sessions * self.length


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step's parts.

    Attributes:
        generate: until all sessions have ended, by all engines.
        train: forward, backward, exchanges and update.
        publish: new weights to the engines.
        alone: until all sessions have ended, by the engines that generate the next step's while the trainer learns
            (staleness 1); inf where there are none.
    """

    generate: float
    train: float
    publish: float
    alone: float = float("inf")

    @property
    def overlaps(self) -> bool:
        """Whether sessions are generated while the trainer learns."""
        return self.alone < float("inf")

    @property
    def total(self) -> float:
        """The step: what the engines leave over while the trainer learns, all of them generate after it."""
        left = max(1 - self.train / self.alone, 0.0)
        return self.train + left * self.generate + self.publish


def generate_seconds(
    shape: Shape, memory: EngineMemory, engines: int, ranks: int, work: Work, rates: Rates, width: int = 2
) -> float:
    """Seconds until all sessions are generated, as many by each engine; inf without engines, or room for a session."""
    if not engines:
        return float("inf")
    each = -(-work.sessions // engines)
    batch = min(each, work.batch, memory.tokens // work.length)
    if batch < 1:
        return float("inf")
    used = 1 - (1 - shape.num_experts_per_tok / shape.num_experts) ** batch if shape.num_experts else 0.0
    read = (shape.parameters - shape.num_hidden_layers * shape.experts * (1 - used)) * width
    read += batch * work.length * shape.kv_values * width
    arithmetic = rates.tflops * 1e12 * rates.generated * ranks
    turn = max(
        read / (rates.memory * 1e9 * rates.generated * ranks),
        shape.flops(batch, work.length, backward=False) / arithmetic,
    )
    turn += 4 * shape.num_hidden_layers * batch * shape.hidden_size * width / (rates.link * 1e9) if ranks > 1 else 0.0
    prefill = shape.flops(each * work.prompt, work.prompt / 2, backward=False) / arithmetic
    return each / batch * work.sampled * turn + prefill


def train_seconds(
    shape: Shape, split: Split, numbers: Numbers, work: Work, rates: Rates, budget: int, on_a_node: int
) -> float:
    """Seconds of a step's training; `on_a_node`: ranks that share a node."""
    arithmetic = rates.tflops * 1e12 * rates.trained * split.ranks
    again = 4 / 3 if numbers.recompute else 1.0
    computed = again * shape.flops(work.tokens, work.length / 2, backward=True) / arithmetic
    batches = max(work.tokens / budget / split.data, 1.0)
    computed *= 1 + (split.pipeline - 1) / batches  # the pipeline's bubble
    tokens = work.tokens / (split.data * split.context)
    passed = tokens * shape.hidden_size * 2 * shape.num_hidden_layers / split.pipeline
    moved = 0.0
    if split.tensor > 1:
        moved += again * 8 * passed * (split.tensor - 1) / split.tensor / (rates.link * 1e9)
    if split.expert > 1:
        near = split.expert <= on_a_node
        moved += (
            again * 4 * passed / split.tensor * shape.num_experts_per_tok / (_of_link(rates, near, on_a_node) * 1e9)
        )
    shared, experts = own_parameters(shape, split)
    if split.data > 1:
        near = split.ranks <= on_a_node
        values = shared + experts * (split.expert < split.ranks)
        moved += exchanged(numbers, work, budget, split) * values / (_of_link(rates, near, on_a_node) * 1e9)
    return computed + moved


def exchanged(numbers: Numbers, work: Work, budget: int, split: Split) -> float:
    """Bytes that each data-parallel rank sends in a step, for each of its weights.

    Megatron sends float32 gradients and new bfloat16 weights once a step. FSDP gathers the weights twice for each of
    its forests, forward and backward, and reduces their float32 gradients.
    """
    if numbers.trainer != "fsdp":
        return 6.0
    return (2 * numbers.activation + 4) * max(work.tokens / budget / split.data, 1.0)


def _of_link(rates: Rates, near: bool, on_a_node: int) -> float:
    """GB each second that a rank sends: within its node, or its share of the node's network."""
    return rates.link if near else rates.network / on_a_node


def publish_seconds(shape: Shape, rates: Rates, *, across: bool, width: int = 2) -> float:
    """Seconds in which all weights reach every node's engines, in a chain over the network, or within a node."""
    return shape.parameters * width / ((rates.network if across else rates.link) * 1e9)


def measured_rates() -> Rates:
    """Rates of this machine's CPU, from a matrix product and a copy of some milliseconds."""
    import numpy as np

    size, best, copied = 512, float("inf"), float("inf")
    a, large = np.ones((size, size), np.float32), np.ones(1 << 23, np.float32)
    for _ in range(3):
        start = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - start)
        start = time.perf_counter()
        large.copy()
        copied = min(copied, time.perf_counter() - start)
    memory = 2 * large.nbytes / copied / 1e9
    return Rates(2 * size**3 / best / 1e12, memory, memory, memory, trained=0.5, generated=0.5)
