"""A training step against plain transformers': `python -m benchmarks.training_step [PART ...] [--small]`.

Parts, all by default:

- rows: rows that share no prefix, forward, clipped loss, backward, clipping and AdamW, packing included. The other side
  is transformers' model as it comes, with the same loss, the head on the trained tokens alone, torch's fused AdamW, and
  no padding: equal rows are one batch with the causal fast path, unequal ones a pass each. The aim is at most its time.
- head: `benchmarks.head`.
- optimizer: an update as the trainer makes it (clipping, AdamW, clearing), against torch's fused AdamW alone.
- fsdp: the same ragged rows on `trainer=fsdp`: two ranks of one thread against one rank of one thread and one of two.

Sides take turns, and the least of the rounds is compared: processor time on one thread, but wall time for ranks, which
needs two free cores. Each part also compares what is computed, gradients or updated weights of both sides, and ends
with 1 where they differ. `--small` does one round at small shapes, for that alone.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from agentrl.common import cores
from agentrl.config import AlgoConfig
from agentrl.train.algorithms import make_algorithm
from agentrl.train.algorithms.credit import Credit
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.fsdp.settings import FsdpConfig
from agentrl.train.trainers.fsdp.trainer import FsdpTrainer
from agentrl.train.trainers.optimizer import Optimizer
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Group, Task
from benchmarks import head
from benchmarks.forest import sample
from benchmarks.machine import machine

SHAPE = {"num_hidden_layers": 8, "hidden_size": 256, "intermediate_size": 640, "vocab_size": 2048}
SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 512}
BUDGET = 8192
TOLERANCE = 2e-5
"""How far updates may be from each other, as a share of their length."""
ALGO = AlgoConfig(lr=1e-3, max_grad_norm=1.0, weight_decay=0.0)


def build(folder: Path, shape: dict[str, int]) -> Path:
    """A random Llama."""
    torch.manual_seed(0)
    config = LlamaConfig(num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=4096, **shape)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


class Batch:
    """Rows of a prompt and a sampled turn each, with an advantage.

    Args:
        lengths: of the rows' prompts and turns.
        vocabulary: of their tokens.
    """

    def __init__(self, lengths: Sequence[tuple[int, int]], vocabulary: int) -> None:
        dice = random.Random(0)
        self.rows = [[[dice.randrange(vocabulary) for _ in range(size)] for size in both] for both in lengths]
        # Each opens with a token of its own, so that no two share a prefix.
        self.rows = [([number, *opening[1:]], turn) for number, (opening, turn) in enumerate(self.rows)]
        sessions = [sample(number, *row) for number, row in enumerate(self.rows)]
        self.credit: Credit = make_algorithm(ALGO).credit([Group("g", Task(id="t"), sessions)])
        self.groups = [Group(session.id, Task(id="t"), [session]) for session in sessions]
        self.advantages = [self.credit.shares[session.id, 1][0].advantage for session in sessions]
        self.weights = [self.credit.shares[session.id, 1][0].weight for session in sessions]


class Plain:
    """transformers' own step."""

    def __init__(self, path: Path, batch: Batch) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="sdpa", dtype=torch.float32).eval()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=ALGO.lr, betas=ALGO.betas, weight_decay=0.0, fused=True
        )
        self.batch = batch
        count, shapes = len(batch.rows), {(len(opening), len(turn)) for opening, turn in batch.rows}
        self.passes = [list(range(count))] if len(shapes) == 1 else [[number] for number in range(count)]

    def accumulate(self) -> None:
        """Add the batch's gradient to the parameters'."""
        batch = self.batch
        for numbers in self.passes:
            size = len(batch.rows[numbers[0]][1])
            ids = torch.tensor([[*batch.rows[number][0], *batch.rows[number][1]] for number in numbers])
            advantage, weight = (
                torch.tensor([each[number] for number in numbers])[:, None]
                for each in (batch.advantages, batch.weights)
            )
            logits = self.model(input_ids=ids, logits_to_keep=size + 1, use_cache=False).logits[:, :-1]
            logp = torch.log_softmax(logits.float(), -1).gather(2, ids[:, -size:, None]).squeeze(2)
            ratio = torch.exp(logp - logp.detach())
            loss = -(torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage) * weight).sum()
            loss.backward()  # type: ignore[no-untyped-call]

    def step(self) -> None:
        """Learn from the batch."""
        self.accumulate()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), ALGO.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class Ours:
    """The torch trainer's step."""

    def __init__(self, path: Path, batch: Batch) -> None:
        self.trainer = TorchTrainer(path, TorchConfig(device="cpu", threads=1), ALGO)
        self.model, self.batch = self.trainer.model, batch

    def accumulate(self) -> None:
        """Add the batch's gradient to the parameters'."""
        for forest in pack(self.batch.groups, self.batch.credit, BUDGET):
            self.trainer.backward(self.trainer.prepare(forest))

    def step(self) -> None:
        """Learn from the batch."""
        self.trainer.step(pack(self.batch.groups, self.batch.credit, BUDGET))


def gradient_difference(ours: Ours, plain: Plain) -> float:
    """How far our gradient is from transformers', as a share of its length."""
    for side in (ours, plain):
        side.accumulate()
    theirs = dict(plain.model.named_parameters())
    pairs = [(each.grad, theirs[name].grad) for name, each in ours.model.named_parameters()]
    apart = sum(float((a - b).square().sum()) for a, b in pairs if a is not None and b is not None)
    length = sum(float(b.square().sum()) for _, b in pairs if b is not None)
    for side in (ours, plain):
        side.model.zero_grad(set_to_none=True)
    return float((apart / length) ** 0.5)


def least(sides: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """The least seconds of each side, which take turns; a first round, which warms up, is left out."""
    taken = dict.fromkeys(sides, float("inf"))
    for number in range(rounds + 1):
        for name, run in sides.items():
            began = clock()
            run()
            if number:
                taken[name] = min(taken[name], clock() - began)
    return taken


def ragged(count: int, longest: int) -> list[tuple[int, int]]:
    """Lengths of prompts and turns of so many rows, up to one."""
    dice, least_size, turns = random.Random(1), longest // 16, longest // 8
    return [(dice.randrange(least_size, longest - turns), dice.randrange(least_size, turns)) for _ in range(count)]


def rows(rounds: int, *, small: bool) -> bool:
    """Compare a step on rows without shared prefixes; whether gradients agree."""
    shape = SMALL if small else SHAPE
    cases = {"equal rows": [(448, 64)] * 8, "ragged rows": ragged(8, 1024), "short ragged rows": ragged(24, 256)}
    if small:
        cases = {"equal rows": [(24, 8)] * 4, "ragged rows": ragged(3, 640), "short ragged rows": ragged(12, 128)}
    good = True
    with tempfile.TemporaryDirectory() as folder:
        path = build(Path(folder), shape)
        for name, lengths in cases.items():
            batch = Batch(lengths, shape["vocab_size"])
            ours, plain = Ours(path, batch), Plain(path, batch)
            apart = gradient_difference(ours, plain)
            taken = least({"agentrl": ours.step, "transformers": plain.step}, rounds, time.process_time)
            count, tokens = len(lengths), sum(map(sum, lengths))
            print(f"{name}: {count} of {tokens} tokens, gradients {apart:.1e} apart; ", end="")
            print(f"agentrl {taken['agentrl']:.3f} s of CPU, transformers {taken['transformers']:.3f}: ", end="")
            print(f"{taken['agentrl'] / taken['transformers']:.2f} times (aim: at most 1.0)", flush=True)
            good &= apart < TOLERANCE
    return good


def optimizer(rounds: int, *, small: bool) -> bool:
    """Compare an update with torch's own; whether both make the same weights."""
    torch.manual_seed(0)
    sizes = [(256, 64)] * 3 if small else [(2048, 256), *[(640, 256)] * 24, *[(256, 256)] * 32, *[(256,)] * 17]
    ours, theirs = ([torch.nn.Parameter(torch.randn(size)) for size in sizes] for _ in range(2))
    gradients = [torch.randn(size) * 1e-4 for size in sizes]
    for one, other in zip(ours, theirs, strict=True):
        other.data.copy_(one.data)
    update = Optimizer(ours, ALGO, 1)
    plain = torch.optim.AdamW(theirs, lr=ALGO.lr, betas=ALGO.betas, weight_decay=0.0, fused=True)

    def learn(parameters: Sequence[torch.nn.Parameter]) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        if parameters is ours:
            update.step()
        else:
            plain.step()
            plain.zero_grad(set_to_none=True)

    sides: dict[str, Callable[[], object]] = {"ours": lambda: learn(ours), "theirs": lambda: learn(theirs)}
    taken = least(sides, rounds * 10, time.process_time)
    same = all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    ours_ms, theirs_ms = taken["ours"] * 1e3, taken["theirs"] * 1e3
    print(f"optimizer: an update {ours_ms:.2f} ms of CPU, torch's fused AdamW alone {theirs_ms:.2f}: ", end="")
    print(f"{ours_ms / theirs_ms:.2f} times; weights {'are equal' if same else 'DIFFER'}", flush=True)
    return same


def fsdp(rounds: int, *, small: bool) -> bool:
    """Compare two ranks with one; whether both learn the same."""
    shape = SMALL if small else SHAPE
    batch = Batch(ragged(4 if small else 32, 192 if small else 1024), shape["vocab_size"])
    seconds, norms = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        path = build(Path(folder), shape)
        for ranks, threads in ((1, 1), (2, 1)) if small else ((1, 1), (2, 1), (1, 2)):
            trainer = FsdpTrainer(path, FsdpConfig(ranks=ranks, device="cpu", threads=threads, timeout=600.0), ALGO)
            try:
                found = [trainer.step(pack(batch.groups, batch.credit, BUDGET))["grad_norm"]]

                def step(trainer: FsdpTrainer = trainer, found: list[float] = found) -> None:
                    found.append(trainer.step(pack(batch.groups, batch.credit, BUDGET))["grad_norm"])

                seconds[ranks, threads] = least({"step": step}, rounds, time.perf_counter)["step"]
            finally:
                trainer.close()
            norms[ranks, threads] = found[0]
            print(f"fsdp: {ranks} rank(s) of {threads} thread(s) {seconds[ranks, threads]:.2f} s a step", flush=True)
    one, two = seconds[1, 1], seconds[2, 1]
    apart = abs(norms[1, 1] - norms[2, 1]) / norms[1, 1]
    beside = "" if small else f", {seconds[1, 2] / two:.2f} times as fast as one of two threads"
    print(f"fsdp: two ranks {one / two:.2f} times as fast as one of one thread (aim: at least 1.7){beside}; ", end="")
    print(f"norms of their gradients {apart:.1e} apart", flush=True)
    return apart < TOLERANCE


PARTS: dict[str, Callable[..., bool]] = {"rows": rows, "optimizer": optimizer, "fsdp": fsdp}


def main(given: Sequence[str] | None = None) -> int:
    """Measure; 1 where the sides compute different things, or the head misses its aims."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join((*PARTS, 'head'))}; all by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="small shapes, one round, and no head")
    words = parser.parse_args(given)
    chosen = words.parts or [*PARTS, *([] if words.small else ["head"])]
    if unknown := set(chosen) - {*PARTS, "head"}:
        parser.error(f"no part is called {', '.join(sorted(unknown))}: {', '.join((*PARTS, 'head'))}")
    logging.disable_progress_bar()
    print(machine(), flush=True)
    rounds = 1 if words.small else words.rounds
    with cores.computing(1):
        good = [PARTS[name](rounds, small=words.small) for name in chosen if name != "head"]
    return max(int(not all(good)), head.main([]) if "head" in chosen else 0)


if __name__ == "__main__":
    sys.exit(main())
