"""SGLang's sampler against the rule that is written for it: `.venv-sglang/bin/python -m benchmarks.sglang_sampler`.

Run by the interpreter that has SGLang. Its own function draws `--draws` tokens from random rows, each with a top-k, a
top-p and a min-p of its own (or none), and says what it kept. The rule, in float64: a token is left where fewer than
top-k are more probable, where those hold no more than top-p of the whole vocabulary's mass, and where it has at least
min-p times the probability of the most probable one. A set may differ by the one token at a border, by rounding.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from sglang.srt.layers.sampler import top_k_top_p_min_p_sampling_from_probs_torch as drawn_by_sglang

ROWS, VOCABULARY = 100, 3000


def by_rule(logits_V: np.ndarray, top_k: int, top_p: float, min_p: float) -> set[int]:
    """The ids that are left."""
    order = np.argsort(-logits_V, kind="stable")
    mass = np.exp(logits_V[order].astype(np.float64) - logits_V.max())
    mass /= mass.sum()
    before = np.cumsum(mass) - mass
    left = (np.arange(len(order)) < top_k) & (before <= top_p) & (mass >= min_p * mass[0])
    return set(order[left].tolist())


def main() -> None:
    """Print in how many rows the two differ, by how many ids, and whether what was drawn is what is left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10_000, help="tokens")
    draws = parser.parse_args().draws
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
    print(f"top_p=1: {fewer} sets lack improbable tokens, since its running sum passes 1 by rounding")


if __name__ == "__main__":
    main()
