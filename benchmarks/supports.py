"""What it costs to record and train what tokens were drawn from, and that runs which narrow it learn.

    python -m benchmarks.supports [cost] [learn] [proof] [--small] [--seeds 1]

cost: bytes a token of the recorded supports, the head's time (forward and backward, torch, one thread) against full
support, and the local engine's time for a turn's tokens, by what turns are drawn with. The vocabulary is 49,152, the
logits are normal with a deviation of 5, which leaves some hundred tokens to top-p 0.9. Aim: the head at most 1.10 times
full support.

proof: 100,000 rows, of all filters, penalties, biases and masks and their combinations, whose recorded set is compared
with that of sorted lists in float64 (a difference is allowed where rounding puts a token on the border), and 50,000
draws whose frequencies are compared with their log-probabilities.

learn: `calculator` as in `benchmarks.learning`, with full support and narrowed, and for each the largest difference
between the trainer's and the engine's log-probability of a token in any step. `--small` takes a step of each.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from agentrl.attachments import support
from agentrl.envs.builtin.calculator import Calculator
from agentrl.overrides import merge
from agentrl.rollout.engines.local.sampler import RowSampling, sample
from agentrl.train.forest.columns import Column, SharedColumn
from agentrl.train.forest.distribution import Drawn
from agentrl.train.forest.supports import BEFORE, KEPT, PENALTIES
from agentrl.types import Sampling
from benchmarks.head import Case
from benchmarks.learning import SMALL, measured
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
    "top_p=0.9": {"rollout": {"top_p": 0.9}},
    "top_k=8": {"rollout": {"top_k": 8}},
    "min_p=0.05": {"rollout": {"min_p": 0.05}},
    "strict_calls": {"rollout": {"strict_calls": True}},
}
VOCABULARY, DEVIATION, PROMPT = 49152, 5.0, 200
MOST_BYTES = 2048
PARTS, TOGETHER = 10, 100
"""Parts of the proof's rows, each with a seed of its own; and rows that are drawn together, of one vocabulary."""
UNRENORMALISED = 10
"""The steps of a run whose trainer knows no sets."""


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


def changed_by_definition(logits_BV: np.ndarray, rows: Sequence[RowSampling]) -> np.ndarray:
    """The logits that grammars, penalties and biases leave of each row, token by token and in float64."""
    found_BV = logits_BV.astype(np.float64)
    for found, row in zip(found_BV, rows, strict=True):
        own, penalty = row.sampling, row.sampling.repetition_penalty
        for token in {*row.prompt, *row.generated}:
            found[token] = found[token] / penalty if found[token] > 0 else found[token] * penalty
        for token, count in Counter(row.generated).items():
            found[token] -= own.presence_penalty + own.frequency_penalty * count
        for token, bias in own.logit_bias:
            found[token] += bias
        if row.allowed is not None:
            found[~row.allowed] = -np.inf
    return found_BV


def kept_by_definition(scaled_BV: np.ndarray, rows: Sequence[RowSampling]) -> np.ndarray:
    """Whether top-k, top-p and min-p leave a token of each row, by their definitions: with sorted lists and float64."""
    order_BV = np.argsort(-scaled_BV, axis=1, kind="stable")
    sorted_BV = np.take_along_axis(scaled_BV, order_BV, 1)
    best_B1, vocabulary = sorted_BV[:, :1], scaled_BV.shape[1]
    top_k, top_p, min_p = (
        np.array([[getattr(row.sampling, name) or default] for row in rows])
        for name, default in (("top_k", vocabulary), ("top_p", 0.0), ("min_p", 0.0))
    )
    within_BV = np.isfinite(sorted_BV) & (np.arange(vocabulary) < top_k)
    prob_BV = np.exp(sorted_BV - best_B1) * within_BV
    before_BV = (prob_BV.cumsum(1) - prob_BV) / prob_BV.sum(1, keepdims=True)
    within_BV &= (before_BV < top_p) | (top_p >= 1)
    with np.errstate(divide="ignore"):
        within_BV &= sorted_BV >= best_B1 + np.log(min_p)
    within_BV[:, 0] = True
    kept_BV = np.zeros_like(within_BV)
    np.put_along_axis(kept_BV, order_BV, within_BV, 1)
    return kept_BV


def kept_ids(data: bytes, token: int) -> list[int]:
    """The ids that a turn's one recorded token was drawn from; none where it was outside of them."""
    found = support.unpack(data)
    code = found.codes[0]
    if code < support.SETS:
        return {support.ONE: [token], support.FULL: list(range(found.vocabulary))}.get(code, [])
    read = found.ids(code)
    return (read if read[0] >= 0 else np.setdiff1d(np.arange(found.vocabulary), -1 - read)).tolist()


def random_row(dice: random.Random, generator: torch.Generator, seed: int, vocabulary: int) -> RowSampling:
    """A row of a random mixture of filters, penalties, biases and masks, whose support is recorded."""
    own = Sampling(
        temperature=dice.choice((0.6, 1.0, 1.5)),
        top_p=dice.choice((0.5, 0.9, 0.999, 1.0)),
        top_k=dice.choice((None, 3, 20, 2500)),
        min_p=dice.choice((0.0, 0.05)),
        repetition_penalty=dice.choice((1.0, 1.0, 1.3)),
        presence_penalty=dice.choice((0.0, 0.0, 0.5)),
        frequency_penalty=dice.choice((0.0, 0.0, 0.3)),
        logit_bias=dice.choice(((), ((2, 1.5), (3, -100.0)))),
    )
    prompt, turn = (dice.choices(range(vocabulary), k=count) for count in (6, 4))
    allowed = torch.rand(vocabulary, generator=generator).numpy() < 0.7 if dice.random() < 0.3 else None
    if allowed is not None:
        allowed[turn] = True
    return RowSampling(own, seed, 0, turn, prompt, support.SupportRecorder(vocabulary, 1 << 20), allowed)


def compared(logits_BV: Tensor, rows: Sequence[RowSampling]) -> Iterator[int | None]:
    """Draw from rows; yield by how many ids each one's set is not that by definition, None where it lacks the token."""
    temperature_B1 = np.array([[row.sampling.temperature] for row in rows])
    scaled_BV = changed_by_definition(logits_BV.numpy(), rows) / temperature_B1
    wanted_BV = kept_by_definition(scaled_BV, rows)
    tokens, logps, _ = sample(logits_BV, rows)
    for row, token, logp, scaled, wanted in zip(rows, tokens, logps, scaled_BV, wanted_BV, strict=True):
        assert row.support is not None
        kept = kept_ids(row.support.data(), token)
        if token not in kept:
            yield None
            continue
        own_logp = scaled[token] - np.logaddexp.reduce(scaled[kept])
        assert abs(logp - own_logp) < 1e-5, f"a log-probability of {logp} in place of {own_logp}"
        found = np.zeros_like(wanted)
        found[kept] = True
        yield int((found != wanted).sum())


def differing(rows: int, seed: int) -> list[int | None]:
    """Draw from random rows; see `compared`."""
    dice, generator, found = random.Random(seed), torch.Generator().manual_seed(seed), list[int | None]()
    for first in range(0, rows, TOGETHER):
        vocabulary, count = dice.choice((7, 300, 3000)), min(TOGETHER, rows - first)
        deviation_B1 = torch.tensor([[dice.choice((0.5, 2.0, 6.0))] for _ in range(count)])
        logits = torch.randn(count, vocabulary, generator=generator) * deviation_B1
        found += compared(logits, [random_row(dice, generator, first + i, vocabulary) for i in range(count)])
    return found


def chi_square(draws: int) -> tuple[float, int]:
    """How far the frequencies of draws are from their log-probabilities, and the degrees of freedom."""
    own = Sampling(top_p=0.95, top_k=12, repetition_penalty=1.3, logit_bias=((2, 1.0),))
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(1)).expand(500, -1) * 1.5
    counts: Counter[int] = Counter()
    logps: dict[int, float] = {}
    for first in range(0, draws, 500):
        rows = [RowSampling(own, first + i, 0, (1, 5), (7,), support.SupportRecorder(40, 999)) for i in range(500)]
        for token, logp in zip(*sample(logits, rows)[:2], strict=True):
            counts[token] += 1
            logps[token] = logp
    assert abs(sum(np.exp(list(logps.values()))) - 1) < 1e-5
    expected = {token: draws * math.exp(logp) for token, logp in logps.items()}
    return sum((counts[token] - expected[token]) ** 2 / expected[token] for token in expected), len(expected) - 1


def prove(rows: int, draws: int) -> None:
    """Print what the comparisons gave."""
    square, freedom = chi_square(draws)
    print(f"{draws} draws: chi-square {square:.1f} with {freedom} degrees of freedom", flush=True)
    found = list[int | None]()
    for seed in range(PARTS):
        found += differing(rows // PARTS, seed)
        beside = [ids for ids in found if ids is not None]
        differ, outside = sum(map(bool, beside)), len(found) - len(beside)
        print(f"{len(found)} rows: {differ} sets differ from an independent sampler's", end=", ")
        print(f"by {max(beside)} ids at most; {outside} tokens are outside of theirs", flush=True)


def learn(names: Sequence[str], seeds: range, steps: int | None, small: bool, switched: bool) -> None:
    """Train with each narrowing and each seed, and print what came of it; a seed's runs share their warm start."""
    with TemporaryDirectory() as folder:
        for seed, name in itertools.product(seeds, names or LEARNT):
            warm = Path(folder) / f"warm-{seed}"
            if not warm.exists():
                once = SMALL if small else SMALL | {"warm_start": {}}
                print(f"calculator, warm start, seed {seed}: {measured({'env': 'calculator'} | once, seed, warm)}")
            settings = merge(recipe(), {"model": str(warm / "checkpoints" / "step-000000")})
            settings = merge(settings, LEARNT[name] if steps is None else LEARNT[name] | {"steps": steps})
            settings = merge(settings, SMALL | {"warm_start": {}}) if small else settings
            run = Path(folder) / f"{name}-{seed}"
            came = measured(settings, seed, run)
            print(f"calculator, {name}, seed {seed}: {came}; {agreed(run)}", flush=True)
            if switched and seed == seeds[0] and LEARNT[name]:
                run = Path(folder) / f"{name}-{seed}-unrenormalised"
                with patch.object(Drawn, "of", lambda _rows: None):
                    came = measured(settings | {"steps": min(settings["steps"], UNRENORMALISED)}, seed, run)
                print(f"calculator, {name}, unrenormalised, seed {seed}: {came}; {agreed(run)}", flush=True)


def recipe() -> dict[str, Any]:
    """Return what `agentrl train env=calculator` trains the tiny model with after its warm start."""
    found: dict[str, Any] = {"env": "calculator"}
    for name, value in Calculator.recipe("tiny").items():
        section, _, key = name.rpartition(".")
        if section != "warm_start":
            found = merge(found, {section: {key: value}} if section else {key: value})
    return found


def agreed(run: Path) -> str:
    """Say how far the trainer's log-probabilities were from the engine's in any step, and what was not trained."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    largest = [row["mismatch/abs_max"] for row in rows if "mismatch/abs_max" in row]
    means = [row["mismatch/abs_mean"] for row in rows if "mismatch/abs_mean" in row]
    if not largest:
        return "no step trained"
    reasons = {name for row in rows for name in row if name.startswith("signal/")}
    lost = ", ".join(f"{name} {max(row.get(name, 0) for row in rows):.3g}" for name in sorted(reasons))
    return f"mismatch at most {max(largest):.1e}, {statistics.mean(means):.1e} in the mean; at most {lost}"


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="cost, learn, proof; all by default")
    parser.add_argument("--only", nargs="*", default=(), help=f"learn with these alone: {', '.join(LEARNT)}")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each")
    parser.add_argument("--steps", type=int, help="steps of each run; the recipe's by default")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--unrenormalised", action="store_true", help="and ten steps of the first seed as if no set had been recorded"
    )
    parser.add_argument("--rows", type=int, default=96, help="tokens of the turn whose cost is measured")
    parser.add_argument("--small", action="store_true", help="a step of each, and a small head")
    given = parser.parse_args()
    print(machine(), flush=True)
    what = given.what or ["cost", "learn", "proof"]
    if "proof" in what:
        prove(*((200, 1000) if given.small else (100_000, 50_000)))
    if "cost" in what:
        cost(32 if given.small else given.rows, 1 if given.small else 3, 512 if given.small else VOCABULARY)
    if "learn" in what:
        seeds = range(given.first, given.first + given.seeds)
        learn(given.only, seeds, given.steps, given.small, given.unrenormalised)


if __name__ == "__main__":
    main()
