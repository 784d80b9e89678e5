"""SGLang's sampler against the rule that is written for it: `.venv-sglang/bin/python -m benchmarks.sglang_sampler`.

Run by the interpreter that has SGLang. Its own function draws `--draws` tokens from random rows, each with a top-k, a
top-p and a min-p of its own (or none), and says what it kept. The rule, in float64: a token is left where fewer than
top-k are more probable, where those hold no more than top-p of the whole vocabulary's mass, and where it has at least
min-p times the probability of the most probable one. A set may differ by the one token at a border, by rounding.

Then `--steps` of batches whose requests have penalties of their own, come, leave, are retracted and come back. What its
counters, with agentrl's extension, make of logits is compared with the rule, in float64: the repetition penalty on the
turn's own tokens, then the presence and the frequency penalty on these.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sglang.srt.layers.sampler import top_k_top_p_min_p_sampling_from_probs_torch as drawn_by_sglang
from sglang.srt.sampling.penaltylib import (
    BatchedFrequencyPenalizer,
    BatchedMinNewTokensPenalizer,
    BatchedPenalizerOrchestrator,
    BatchedPresencePenalizer,
    BatchedRepetitionPenalizer,
)

sys.path.append(str(Path(__file__).parents[1] / "agentrl/rollout/engines/servers/sglang_extension"))
from agentrl_sglang import count_again

ROWS, VOCABULARY = 100, 3000
FEW = 12
"""The vocabulary of penalised requests: their tokens come again."""
PENALTIES = {
    BatchedFrequencyPenalizer,
    BatchedMinNewTokensPenalizer,
    BatchedPresencePenalizer,
    BatchedRepetitionPenalizer,
}


def by_rule(logits_V: np.ndarray, top_k: int, top_p: float, min_p: float) -> set[int]:
    """The ids that are left."""
    order = np.argsort(-logits_V, kind="stable")
    mass = np.exp(logits_V[order].astype(np.float64) - logits_V.max())
    mass /= mass.sum()
    before = np.cumsum(mass) - mass
    left = (np.arange(len(order)) < top_k) & (before <= top_p) & (mass >= min_p * mass[0])
    return set(order[left].tolist())


class Batch:
    """Requests that are computed together, and their counters."""

    device = "cpu"

    def __init__(self, reqs: list[Any]) -> None:
        self.reqs = reqs
        self.counters = BatchedPenalizerOrchestrator(FEW, self, PENALTIES)

    def draw(self, dice: random.Random) -> float:
        """Give each request a token, and return how far the logits that it was drawn from are from the rule's."""
        logits = torch.tensor([[dice.gauss(0, 2) for _ in range(FEW)] for _ in self.reqs])
        wanted = [changed(row, one) for row, one in zip(logits.double().tolist(), self.reqs, strict=True)]
        self.counters.apply(logits)
        for request in self.reqs:
            request.output_ids.append(dice.randrange(FEW))
        return float((logits.double() - torch.tensor(wanted, dtype=torch.float64)).abs().max())


def changed(logits_V: list[float], request: Any) -> list[float]:
    """The logits by the rule, token by token."""
    own, found = request.sampling_params, list(logits_V)
    for token, count in Counter(request.output_ids).items():
        penalty = own.repetition_penalty
        found[token] = found[token] / penalty if found[token] > 0 else found[token] * penalty
        found[token] -= own.presence_penalty + own.frequency_penalty * count
    return found


def penalised(steps: int) -> float:
    """The largest difference over random batches."""
    dice, largest, left = random.Random(0), 0.0, list[Any]()
    batch = Batch([])
    for _ in range(steps):
        new = [left.pop() for _ in range(min(len(left), dice.randint(0, 1)))]
        for _ in range(dice.randint(0, 2) if len(batch.reqs) < 6 else 0):
            own = SimpleNamespace(
                repetition_penalty=dice.choice((1.0, 1.0, 1.3)),
                presence_penalty=dice.choice((0.0, 0.0, 0.5)),
                frequency_penalty=dice.choice((0.0, 0.0, 0.3)),
                min_new_tokens=0,
            )
            new.append(SimpleNamespace(sampling_params=own, output_ids=[]))
        if new:  # a prefill, from which they join those that decode
            joining = Batch(new)
            largest = max(largest, joining.draw(dice))
            batch.counters.merge(joining.counters)
            batch.reqs = [*batch.reqs, *new]
        keep = [at for at in range(len(batch.reqs)) if dice.random() > 0.1]
        gone = [one for at, one in enumerate(batch.reqs) if at not in keep]
        left += [one for one in gone if dice.random() < 0.7]
        if gone:
            batch.reqs = [batch.reqs[at] for at in keep]
            batch.counters.filter(torch.tensor(keep, dtype=torch.int64))
        if not batch.reqs:
            batch = Batch([])
        elif batch.counters.is_required:
            batch.counters.cumulate_output_tokens(torch.tensor([one.output_ids[-1] for one in batch.reqs]))
            largest = max(largest, batch.draw(dice))
    return largest


def main() -> None:
    """Print in how many rows the two differ, by how many ids, and whether what was drawn is what is left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10_000, help="tokens")
    parser.add_argument("--steps", type=int, default=10_000, help="of batches with penalties")
    given = parser.parse_args()
    draws = given.draws
    dice, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    differ = most = outside = fewer = 0
    for _ in range(0, draws, ROWS):
        logits = torch.randn(ROWS, VOCABULARY, generator=generator) * float(dice.choice([0.5, 2.0, 5.0]))
        top_k = torch.tensor(dice.choice([1, 8, 50, VOCABULARY], ROWS))
        top_p = torch.tensor(dice.choice([0.3, 0.8, 0.95, 1.0], ROWS), dtype=torch.float32)
        min_p = torch.tensor(dice.choice([0.0, 0.05, 0.2], ROWS), dtype=torch.float32)
        tokens, weights, ids, _ = drawn_by_sglang(
            torch.softmax(logits, -1), top_k, top_p, min_p, True, None, torch.arange(ROWS), return_filtered_probs=True
        )
        for row in range(ROWS):
            kept = set(ids[row][weights[row] > 0].tolist())
            wanted = by_rule(logits[row].numpy(), int(top_k[row]), float(top_p[row]), float(min_p[row]))
            if top_p[row] < 1:
                differ, most = differ + (kept != wanted), max(most, len(kept ^ wanted))
            else:
                fewer += kept < wanted
            outside += int(tokens[row]) not in kept
    print(f"{draws} draws: {differ} sets differ from the rule's, by {most} ids at most; {outside} tokens were outside")
    count_again()
    print(f"{given.steps} steps with penalties: logits differ from the rule's by {penalised(given.steps):.1e} at most")
    print(f"top_p=1: {fewer} sets lack improbable tokens, since its running sum passes 1 by rounding")


if __name__ == "__main__":
    main()
