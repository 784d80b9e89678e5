"""The expected time of a step, and what moves meanwhile: from rates that are given or measured, not from a run.

Generating is bound by reading weights and caches, or by arithmetic where batches are large, and each turn of an engine
by what does not shrink with its GPUs: its layers' kernels, the latency of all-reduces, each sequence's scheduling and
sampling. Training is bound by arithmetic, plus the exchanges of tensor, expert, context, pipeline and data parallelism.
The parts that devices reach, and the latencies, were chosen so that the published times of three runs come out within
a factor of 1.5 (docs/decisions/archive/363-plans-are-held-against-published-times.md).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from agentrl.train.plan.memory import EngineMemory, Numbers, Split, own_parameters, trainer_memory
from agentrl.train.plan.shapes import Shape

FOREST_BYTES = 64
"""A token of a forest with its log-probabilities, advantages and places, roughly."""
SESSION_BYTES = 16
"""A token of a pickled session, roughly: 14 in one of 16,000 tokens with their text, 51 in one of 90."""


@dataclass(frozen=True)
class Rates:
    """The speed of a device and its links, per second; the defaults are an H100's data sheet (SXM, dense bfloat16).

    Attributes:
        tflops: arithmetic, in 10^12 operations.
        memory: reading memory, in GB.
        link: between devices of a node, each way, in GB.
        network: between nodes, each way for a node, in GB; of a DGX H100, eight ports of 400 Gbit.
        host: between a device and the CPU's memory, in GB.
        trained: the part of the arithmetic that training reaches.
        experts: the part of that which training a mixture of experts reaches: its matrices are small.
        generated: the part of the arithmetic that generating reaches.
        read: the part of the memory's rate that generating reaches.
        layer: seconds that a layer's kernels take in an engine at least.
        reduce: seconds that an exchange among the devices of a node takes at least.
        sequence: seconds for scheduling and sampling each sequence in a turn, which an engine's GPUs don't share.
    """

    tflops: float = 989.0
    memory: float = 3350.0
    link: float = 450.0
    network: float = 400.0
    host: float = 50.0
    trained: float = 0.35
    experts: float = 0.25
    generated: float = 0.5
    read: float = 0.6
    layer: float = 70e-6
    reduce: float = 40e-6
    sequence: float = 60e-6

    def arithmetic(self, shape: Shape) -> float:
        """Operations each second that a device reaches in training."""
        return self.tflops * 1e12 * self.trained * (self.experts if shape.num_experts else 1.0)

    def between(self, ranks: int, on_a_node: int) -> float:
        """Bytes each second that each of so many ranks sends: over links, or its share of its node's network."""
        return (self.link if ranks <= on_a_node else self.network / on_a_node) * 1e9


@dataclass(frozen=True)
class StepWork:
    """A step's work.

    Attributes:
        sessions: how many there are.
        prompt: tokens of a session that it does not sample.
        sampled: tokens that it samples.
        batch: the most sequences that an engine decodes at once.
        longest: tokens that the longest session samples; 0 is twice `sampled`.
        forwards: forward passes beside training's: of a reference, or of the policy before its update.
    """

    sessions: int = 512
    prompt: int = 2048
    sampled: int = 2048
    batch: int = 256
    longest: int = 0
    forwards: int = 0

    @property
    def length(self) -> int:
        """Tokens of a session."""
        return self.prompt + self.sampled

    @property
    def held(self) -> int:
        """Tokens of a session that are in an engine's cache, on average while it generates."""
        return self.prompt + self.sampled // 2

    @property
    def last(self) -> int:
        """Tokens that the longest session samples."""
        return self.longest or 2 * self.sampled

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
        """True where sessions are generated while the trainer learns."""
        return self.alone < float("inf")

    @property
    def total(self) -> float:
        """The step: what the engines leave over while the trainer learns, all of them generate after it."""
        left = max(1 - self.train / self.alone, 0.0)
        return self.train + left * self.generate + self.publish


def generate_seconds(
    shape: Shape, memory: EngineMemory, engines: int, ranks: int, work: StepWork, rates: Rates, width: int = 2
) -> float:
    """Return the seconds to generate all sessions, as many by each engine; inf without engines, or room for a session.

    An engine decodes as many at once as its cache holds on average, takes the next one where one ends, and has few
    left at last, while the longest goes on.
    """
    if not engines or memory.tokens < work.length:
        return float("inf")
    each = -(-work.sessions // engines)
    batch = max(min(each, work.batch, memory.tokens // work.held), 1)
    turns = each / batch * work.sampled + max(work.last - work.sampled, 0)
    live = each * work.sampled / turns
    used = 1 - (1 - shape.num_experts_per_tok / shape.num_experts) ** live if shape.num_experts else 0.0
    read = (shape.parameters - shape.num_hidden_layers * shape.experts * (1 - used)) * width / ranks
    read += live * work.held * memory.token
    arithmetic = rates.tflops * 1e12 * rates.generated * ranks
    turn = max(read / (rates.memory * 1e9 * rates.read), shape.flops(live, work.held, backward=False) / arithmetic)
    turn += shape.num_hidden_layers * rates.layer + live * rates.sequence
    if ranks > 1:
        sent = 2 * live * shape.hidden_size * width * (ranks - 1) / ranks
        turn += 2 * shape.num_hidden_layers * (rates.reduce + sent / (rates.link * 1e9))
    return turns * turn + shape.flops(each * work.prompt, work.prompt / 2, backward=False) / arithmetic


def train_seconds(
    shape: Shape, split: Split, numbers: Numbers, work: StepWork, rates: Rates, budget: int, on_a_node: int
) -> float:
    """Return the seconds of a step's training; `on_a_node`: ranks that share a node."""
    again = 4 / 3 if numbers.recompute else 1.0
    again += work.forwards / 3
    computed = again * shape.flops(work.tokens, work.length / 2, backward=True)
    if numbers.adapter:  # frozen weights have no gradients, which are 2 of the 6 operations
        computed += work.tokens * (6 * numbers.adapter - 2 * shape.active)
    computed /= rates.arithmetic(shape) * split.ranks
    forests = max(work.tokens / budget / split.data, 1.0)
    inside = again * _inside(shape, split, work, rates, forests, on_a_node)
    bubble = 1 + (split.pipeline - 1) / forests
    return (computed + inside) * bubble + _update(shape, split, numbers, work, rates, budget, on_a_node)


def _inside(shape: Shape, split: Split, work: StepWork, rates: Rates, forests: float, on_a_node: int) -> float:
    """Seconds of exchanges within the forward and backward pass: of tensor, context, expert and pipeline ranks."""
    layers = shape.num_hidden_layers / split.pipeline
    tokens = work.tokens / (split.data * split.context)
    passed = tokens * shape.hidden_size * 2 / split.tensor
    seconds = 0.0
    if split.tensor > 1:  # 2 all-reduces each way, or as many pairs of gather and scatter; and a matrix less full
        seconds += 8 * layers * (passed * (split.tensor - 1) / (rates.link * 1e9) + forests * rates.reduce)
    if split.context > 1:  # keys and values are gathered forward and for the backward pass, gradients scattered
        keys = tokens * 2 * shape.num_key_value_heads * shape.head_dim * 2 / split.tensor
        sent = 3 * keys * (split.context - 1) / rates.between(split.tensor * split.context, on_a_node)
        seconds += layers * (sent + 3 * forests * rates.reduce)
    if split.expert > 1:  # to the experts and back, each way; those of the node by links, meanwhile the others
        sent = 4 * layers * passed * shape.num_experts_per_tok
        near = min(on_a_node / split.expert, 1.0)
        far = sent * (1 - near) / rates.between(split.expert, on_a_node)
        seconds += max(sent * near / (rates.link * 1e9), far) + 4 * layers * forests * rates.reduce
    if split.pipeline > 1:
        seconds += 2 * (passed / rates.between(split.ranks, on_a_node) + forests * rates.reduce)
    return seconds


def _update(
    shape: Shape, split: Split, numbers: Numbers, work: StepWork, rates: Rates, budget: int, on_a_node: int
) -> float:
    """Seconds of a step's update: gradients and weights between data-parallel ranks, state from the CPU's memory."""
    shared, experts = own_parameters(shape, split)
    seconds = 0.0
    if split.data * split.context > 1:
        values = shared + experts * (split.expert < split.ranks // split.pipeline)
        sent = exchanged_bytes(values, numbers, work, budget, split)
        seconds += sent / rates.between(split.ranks, on_a_node)
    if numbers.offloaded:
        moved = 8 * numbers.adapter or trainer_memory(shape, split, numbers, budget).updating
        seconds += 2 * moved / (rates.host * 1e9)
    return seconds


def exchanged_bytes(values: float, numbers: Numbers, work: StepWork, budget: int, split: Split) -> float:
    """Return the bytes that a data-parallel rank with so many of the model's weights sends in a step.

    Megatron sends float32 gradients and new bfloat16 weights once a step. FSDP gathers the weights twice for each of
    its forests, forward and backward, and reduces their float32 gradients. Of an adapter the gradients alone are sent.
    """
    forests = max(work.tokens / budget / split.data, 1.0)
    gathered = 2 * numbers.activation * forests * values if numbers.trainer == "fsdp" else 0.0
    if numbers.adapter:
        return gathered + 4 * numbers.adapter
    return gathered + 4 * forests * values if numbers.trainer == "fsdp" else 6 * values


def publish_seconds(moved: float, rates: Rates, *, across: bool) -> float:
    """Seconds in which so many bytes reach every node's engines, in a chain over the network, or within a node."""
    return moved / ((rates.network if across else rates.link) * 1e9)


def in_words(seconds: float) -> str:
    """Return seconds as people write them: `3 min 20 s`, `1 h 5 min`; three digits of less than a minute."""
    if round(seconds) < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    larger, smaller = ((hours, "h"), (minutes, "min")) if hours else ((minutes, "min"), (rest, "s"))
    return " ".join(f"{count} {unit}" for count, unit in (larger, smaller) if count)


def measured_rates() -> Rates:
    """Rates of this machine's CPU, from a matrix product and a copy of some milliseconds; latencies are left out."""
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
    return Rates(
        2 * size**3 / best / 1e12,
        *(memory,) * 4,
        trained=0.5,
        experts=1.0,
        generated=0.5,
        read=0.5,
        layer=0.0,
        reduce=0.0,
        sequence=0.0,
    )
