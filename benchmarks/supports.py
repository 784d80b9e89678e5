"""What it costs to record and train what tokens were drawn from, and that runs which narrow it learn.

    python -m benchmarks.supports [cost] [learn] [--small] [--seeds 1]

cost: bytes a token of the recorded supports, the head's time (forward and backward, torch, one thread) against full
support, and the local engine's time for a turn's tokens, by what turns are drawn with. The vocabulary is 49,152, the
logits are normal with a deviation of 5, which leaves some hundred tokens to top-p 0.9. Aim: the head at most 1.10 times
full support.

learn: `calculator` as in `benchmarks.learning`, with full support and narrowed, and for each the largest difference
between the trainer's and the engine's log-probability of a token in any step. `--small` takes a step of each.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from agentrl.attachments import support
from agentrl.overrides import merge
from agentrl.rollout.engines.local.sampler import RowSampling, sample
from agentrl.train.forest.columns import Column, SharedColumn
from agentrl.train.forest.supports import BEFORE, KEPT, PENALTIES
from agentrl.types import Sampling
from benchmarks.head import Case
from benchmarks.learning import SETTINGS, SMALL, measured
from benchmarks.machine import machine

NARROWED: Mapping[str, dict[str, Any]] = {
    "full support": {},
    "top_p=0.9": {"top_p": 0.9},
    "top_k=20, top_p=0.95": {"top_k": 20, "top_p": 0.95},
    "min_p=0.05": {"min_p": 0.05},
    "repetition_penalty=1.1": {"repetition_penalty": 1.1},
}
LEARNT: Mapping[str, dict[str, Any]] = {
    "full support": {},
    "top_p=0.9": {"top_p": 0.9},
    "top_k=8": {"top_k": 8},
    "min_p=0.05": {"min_p": 0.05},
}
VOCABULARY, DEVIATION, PROMPT = 49152, 5.0, 200
MOST_BYTES = 2048


def drawn(logits_BV: Tensor, own: Mapping[str, Any]) -> tuple[list[int], bytes, float]:
    """Draw a token from each row, as the tokens of one turn; tokens, recorded supports, and seconds."""
    sampling = Sampling(**own)
    recorder = None if sampling.full_support else support.SupportRecorder(logits_BV.shape[1], MOST_BYTES)
    prompt, tokens = tuple(range(PROMPT)), list[int]()
    began = time.process_time()
    for place in range(len(logits_BV)):
        row = RowSampling(sampling, 0, place, tokens, prompt, recorder)
        tokens += sample(logits_BV[place : place + 1], [row])[0]
    seconds = time.process_time() - began
    return tokens, b"" if recorder is None else recorder.data(), seconds


def fields(tokens: list[int], data: bytes, own: Mapping[str, Any]) -> dict[str, Column | SharedColumn]:
    """The fields of a turn's rows, in the head's case."""
    if not data:
        return {}
    found = support.unpack(data)
    lists = [
        torch.tensor([token])
        if code == support.ONE
        else torch.from_numpy(found.ids(code))
        if code >= support.SETS
        else torch.zeros(0, dtype=torch.int64)
        for token, code in zip(tokens, found.codes, strict=True)
    ]
    length = torch.tensor([len(each) for each in lists])
    columns: dict[str, Column | SharedColumn] = {
        KEPT: SharedColumn(torch.cat(lists), length.cumsum(0) - length, length)
    }
    if penalty := own.get("repetition_penalty"):
        place = torch.arange(len(tokens))
        path = torch.tensor([*range(PROMPT), *tokens])
        columns[BEFORE] = SharedColumn(path, torch.zeros_like(place), PROMPT + place)
        columns[PENALTIES] = Column(torch.stack([torch.tensor([penalty, 0, 0, float(i)]) for i in range(len(tokens))]))
    return columns


def cost(rows: int, repeats: int, vocabulary: int) -> None:
    """Print bytes a token, and times against full support."""
    torch.set_num_threads(1)
    case = Case(vocabulary, 256, rows, "cpu")
    with torch.no_grad():
        case.head.weight.mul_(DEVIATION / case.head(case.hidden[:16]).std())
        logits = case.head(case.hidden).float()
    turns = {name: drawn(logits, own) for name, own in NARROWED.items()}
    own_fields = {name: fields(*turns[name][:2], own) for name, own in NARROWED.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in NARROWED}
    for name in list(NARROWED) * repeats:
        case.rows.token_ids, case.rows.fields = torch.tensor(turns[name][0]), own_fields[name]
        case.head.weight.grad = case.hidden.grad = None
        began = time.process_time()
        case.backward(case.chunked)
        head = time.process_time() - began
        times[name].append((head, drawn(logits, NARROWED[name])[2]))
    first = times["full support"]
    for name in NARROWED:
        data = turns[name][1]
        codes = support.unpack(data).codes if data else (support.FULL,) * rows
        trained = sum(code >= support.FULL for code in codes) / rows
        head, engine = (
            statistics.median(one[i] / other[i] for one, other in zip(times[name], first, strict=True)) for i in (0, 1)
        )
        drawing = statistics.median(one[1] for one in times[name]) / rows
        print(
            f"{name}: {len(data) / rows:.1f} bytes a token, {trained:.1%} trained; head {head:.2f} times full support; "
            f"drawing {1e3 * drawing:.2f} ms a token, {engine:.2f} times"
        )


def learn(seeds: int, small: bool) -> None:
    """Train with each narrowing and each seed, and print what came of it."""
    with TemporaryDirectory() as folder:
        for (name, own), seed in itertools.product(LEARNT.items(), range(seeds)):
            settings = merge(SETTINGS["calculator"], {"rollout": own})
            settings = merge(settings, SMALL) if small else settings
            run = Path(folder) / f"{name}-{seed}"
            print(f"calculator, {name}, seed {seed}: {measured(settings, seed, run)}", flush=True)


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="cost, learn; both by default")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each")
    parser.add_argument("--rows", type=int, default=96, help="tokens of the turn whose cost is measured")
    parser.add_argument("--small", action="store_true", help="a step of each, and a small head")
    given = parser.parse_args()
    print(machine(), flush=True)
    what = given.what or ["cost", "learn"]
    if "cost" in what:
        cost(32 if given.small else given.rows, 1 if given.small else 3, 512 if given.small else VOCABULARY)
    if "learn" in what:
        learn(given.seeds, given.small)


if __name__ == "__main__":
    main()
