"""The embedded engine against transformers' own `generate()`, on the same model and the same prompts.

Both produce the same number of tokens from the same prompts at temperature 1, in one process; rounds of both
are interleaved and medians compared, so that the ratio holds on a busy machine, and both have the same number of
threads (more than one only pays for larger models or on idle cores). On a machine that others use, the ratio of
processor time says more than that of wall time; both are printed. `generate()` is given its best
case: all prompts equally long, one batch, nothing stops early. The second part has what agents really do, turns
on top of turns, where `generate()` must compute each path anew and the engine goes on from its prefix.

What determinism costs is measured too: the steps of the engine with its padded shapes against the same steps
without any padding.

Run as `python -m benchmarks.local_engine [--model PATH] [--batch 64] [--rounds 5] [--threads 1]`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from agentrl.config import EngineConfig
from agentrl.models import resolve, tiny
from agentrl.rollout.engines.local import flat, parts, runner
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.types import Sampling, collect

TEXTS = [f"<|im_start|>user\nWhat is {n} + {n * 7}?<|im_end|>\n" for n in range(200)]


def generate(model: Any, prompts: list[list[int]], new: int) -> list[list[int]]:
    """Batched sampling by transformers; returns the whole paths."""
    with torch.inference_mode():
        paths = model.generate(
            torch.tensor(prompts, device=model.device),
            attention_mask=torch.ones(len(prompts), len(prompts[0]), dtype=torch.long, device=model.device),
            do_sample=True,
            top_k=0,
            min_new_tokens=new,
            max_new_tokens=new,
            pad_token_id=0,
        )
    found: list[list[int]] = paths.tolist()
    return found


async def engine_turns(engine: LocalEngine, prompts: list[list[int]], new: int, name: str) -> list[list[int]]:
    """The same through the engine, as requests of so many sessions."""
    requests = [
        collect(engine.generate(f"{name}-{i}/0", prompt, Sampling(max_new_tokens=new, seed=i)))
        for i, prompt in enumerate(prompts)
    ]
    return [[*p, *turn.token_ids] for p, turn in zip(prompts, await asyncio.gather(*requests), strict=True)]


class Rates(NamedTuple):
    """Tokens for each second of wall time, and of processor time."""

    wall: float
    processor: float


class Stopwatch:
    """Wall and processor time since it was made."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def rates(self, tokens: int) -> Rates:
        """Return the rates at which so many tokens were drawn."""
        return Rates(tokens / (time.perf_counter() - self._began[0]), tokens / (time.process_time() - self._began[1]))


async def rates(engine: LocalEngine, model: Any, batch: int, rounds: int, turns: int, new: int) -> tuple[Rates, Rates]:
    """Median rates of (engine, generate) over sessions of so many turns."""
    dice = random.Random(0)
    vocab = model.config.vocab_size
    ours: list[Rates] = []
    theirs: list[Rates] = []
    for round_ in range(rounds):
        opening = [dice.choices(range(vocab), k=64) for _ in range(batch)]
        answers = [[dice.choices(range(vocab), k=16) for _ in range(batch)] for _ in range(turns)]
        watch = Stopwatch()
        paths = opening
        for answer in answers:
            paths = await engine_turns(engine, paths, new, f"r{round_}")
            paths = [[*p, *a] for p, a in zip(paths, answer, strict=True)]
        ours.append(watch.rates(batch * turns * new))
        watch = Stopwatch()
        paths = opening
        for answer in answers:
            paths = [[*p, *a] for p, a in zip(generate(model, paths, new), answer, strict=True)]
        theirs.append(watch.rates(batch * turns * new))
    one, other = (Rates(*map(statistics.median, zip(*each, strict=True))) for each in (ours, theirs))
    return one, other


def padding_cost(path: Path, batch: int, rounds: int) -> float:
    """CPU time of a decoding step with padded shapes over that of one without (medians, interleaved)."""
    model = runner.ModelRunner(path, "cpu", "float32", batch, 1 << 30, kernel="torch")
    decode = [(row, 150, 5) for row in range(batch)]
    padded = (runner.QUANTUM, parts.DECODE_ROWS, flat.BLOCK)
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(20 * rounds):
        for deterministic in (True, False):
            runner.QUANTUM, parts.DECODE_ROWS, flat.BLOCK = padded if deterministic else (1, 1, 1 << 20)
            began = time.thread_time()
            model.step(batch, decode, [], 16, range(batch))
            times[deterministic].append(time.thread_time() - began)
    runner.QUANTUM, parts.DECODE_ROWS, flat.BLOCK = padded
    return statistics.median(times[True]) / statistics.median(times[False])


async def measure(path: Path, batch: int, rounds: int, threads: int) -> None:
    """Print the comparison."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    engine = LocalEngine(path, EngineConfig(max_batch=batch, device="cpu", threads=threads))
    torch.set_num_threads(threads)
    try:
        for turns, new in ((1, 64), (4, 24)):
            ours, theirs = await rates(engine, model, batch, rounds, turns, new)
            print(
                f"{batch} sessions, {turns} turn{'s' * (turns > 1)} of {new} tokens, by {engine.capabilities.kernel}:"
            )
            for kind, mine, its in zip(Rates._fields, ours, theirs, strict=True):
                print(f"  {kind} time: {mine:,.0f} tokens/s, generate() {its:,.0f}, ratio {mine / its:.2f}", flush=True)
    finally:
        await engine.close()
    cost = padding_cost(path, batch, rounds)
    print(f"a decoding step with padded shapes against one without: {cost:.2f} times the CPU time")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", help="a known model or a folder; by default the tiny model")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of a forward pass, for both")
    given = parser.parse_args(argv)
    load = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, load {load:.1f} at the start")
    with tempfile.TemporaryDirectory() as scratch:
        path = resolve(given.model) if given.model else tiny.build(Path(scratch) / "tiny", TEXTS)
        asyncio.run(measure(path, given.batch, given.rounds, given.threads))


if __name__ == "__main__":
    main()
