"""vLLM's sampler against the rule that is written for it: `.venv-vllm/bin/python -m benchmarks.vllm_sampler`.

Run by the interpreter that has vLLM. Its own class draws from `--rows` random rows, each with a temperature, a top-k, a
top-p, a min-p, penalties or a bias, and a mask of its own (or none). What it gives a log-probability, among as many of
the most probable tokens as agentrl asks for, is compared with the rule, in float64: a mask, the bias, the repetition
penalty on the tokens of prompt and turn, the frequency and presence penalties on the turn's, the temperature; then
tokens of less than min-p times the best one's probability are left out, those less probable than the k-th of the rest,
and those before which the rest of the rest holds top-p of its mass. Log-probabilities are over what is left.

A set may differ where rounding puts a token on a border, and the drawn token is always in it. Beside requests with a
top-p, one without loses the tokens whose chance is 0 in float32: those of less than 1e-30 are not compared. Then
`--draws` tokens of one row, of every filter together, are compared with their log-probabilities by chi-square.
"""

from __future__ import annotations

import argparse
import math
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")  # compiling a comparison takes longer than all else

import numpy as np
import torch
import vllm._custom_ops  # noqa: F401  (registers what the sampler draws with on a CPU)
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import LogitBiasLogitsProcessor, MinPLogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

LISTED = 512
"""As many of the most probable tokens agentrl asks for, at most (`engines/servers/vllm_options.py`)."""
BATCH, TOLD = 100, 10_000
NOTHING = -69.0
"""The log-probability of what is not compared: a chance of 1e-30, which a sum of float32 does not see."""
MARGINS = (-1e-5, 1e-5)
"""A sum of float32 is off by less."""


class Rows:
    """Requests of a batch, each with the tokens before it and a mask of what may come."""

    def __init__(self, dice: random.Random, vocabulary: int, own: Sequence[SamplingParams], masked: bool) -> None:
        self.vocabulary, self.own = vocabulary, own
        self.prompts = [dice.choices(range(vocabulary), k=6) for _ in own]
        self.turns = [dice.choices(range(vocabulary), k=4) for _ in own]
        chance = np.random.default_rng(dice.randrange(1 << 30)).random((len(own), vocabulary))
        self.forbidden = torch.from_numpy(chance < 0.3)
        self.forbidden[:, 0] = False
        self.masked = masked

    def metadata(self) -> SamplingMetadata:
        """The batch as its scheduler would describe it."""
        size = len(self.own)
        settings = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=size))
        made = [kind(settings, torch.device("cpu"), False) for kind in (LogitBiasLogitsProcessor, MinPLogitsProcessor)]
        added = [(at, one, self.prompts[at], self.turns[at]) for at, one in enumerate(self.own)]
        for each in made:
            each.update_state(BatchUpdate(batch_size=size, removed=[], added=added, moved=[]))
        columns = {
            name: torch.tensor([getattr(one, name) for one in self.own], dtype=torch.float32)
            for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
        }
        top_k = torch.tensor([one.top_k if one.top_k > 0 else self.vocabulary for one in self.own], dtype=torch.int32)
        penalties = [columns[f"{name}_penalty"] for name in ("frequency", "presence", "repetition")]
        return SamplingMetadata(
            temperature=columns["temperature"],
            all_greedy=False,
            all_random=True,
            top_p=columns["top_p"] if (columns["top_p"] < 1).any() else None,
            top_k=top_k if (top_k < self.vocabulary).any() else None,
            generators={},
            max_num_logprobs=min(LISTED, self.vocabulary),
            no_penalties=not (penalties[0].any() or penalties[1].any() or (penalties[2] != 1).any()),
            prompt_token_ids=torch.tensor(self.prompts),
            frequency_penalties=penalties[0],
            presence_penalties=penalties[1],
            repetition_penalties=penalties[2],
            output_token_ids=self.turns,
            allowed_token_ids_mask=self.forbidden if self.masked else None,
            bad_words_token_ids={},
            logitsprocs=LogitsProcessors(made),
        )

    def left(self, at: int, logits_V: np.ndarray, margin: float = 0.0) -> np.ndarray:
        """A row's logits by the rule over its temperature, in float64; -inf for what is left out.

        With a margin, what would be left if top-p's mass were so much more, and min-p's border so much lower.
        """
        own, found = self.own[at], logits_V.astype(np.float64)
        if self.masked:
            found[self.forbidden[at].numpy()] = -np.inf
        for token, bias in (own.logit_bias or {}).items():
            found[token] += bias
        for token in {*self.prompts[at], *self.turns[at]}:
            penalty = own.repetition_penalty
            found[token] = found[token] / penalty if found[token] > 0 else found[token] * penalty
        for token, count in Counter(self.turns[at]).items():
            found[token] -= own.frequency_penalty * count + own.presence_penalty
        found /= own.temperature
        if own.min_p:
            found[found < found.max() + math.log(own.min_p) - margin] = -np.inf
        order = np.argsort(-found, kind="stable")
        if 0 < own.top_k < len(found):
            found[found < found[order[own.top_k - 1]]] = -np.inf
        if own.top_p < 1:
            mass = np.exp(found[order] - found.max())
            mass /= mass.sum()
            out = np.cumsum(mass) - mass >= own.top_p + margin
            out[0] = False
            found[order[out]] = -np.inf
        return found


def random_rows(dice: random.Random) -> Rows:
    """A batch of random requests."""
    vocabulary = dice.choice((7, 300, 3000))
    own = []
    for _ in range(BATCH):
        penalty = dice.choice((1.0, 1.0, 1.3))
        bias = {2: 1.5, 3: -100.0} if penalty == 1 and dice.random() < 0.5 else None  # never beside each other
        own.append(
            SamplingParams(
                temperature=dice.choice((0.6, 1.0, 1.5)),
                top_p=dice.choice((0.5, 0.9, 0.999, 1.0)),
                top_k=min(vocabulary, dice.choice((-1, 3, 20, 400))),
                min_p=dice.choice((0.0, 0.05)),
                repetition_penalty=penalty,
                presence_penalty=dice.choice((0.0, 0.0, 0.5)),
                frequency_penalty=dice.choice((0.0, 0.0, 0.3)),
                logit_bias=bias,
            )
        )
    return Rows(dice, vocabulary, own, dice.random() < 0.3)


def likely(left_V: np.ndarray) -> set[int]:
    """The ids that are left, without those that have no chance."""
    return set(np.flatnonzero(logps_of(left_V) > NOTHING).tolist())


def logps_of(left_V: np.ndarray) -> np.ndarray:
    """Log-probabilities over what is left."""
    apart = left_V - left_V.max()
    return apart - math.log(np.exp(apart).sum())


def compare(rows: int) -> Iterator[tuple[int, Counter[str]]]:
    """Draw from random rows; yield how many so far, and what differs from the rule: counts, and a set's most ids."""
    dice, generator, sampler = random.Random(0), torch.Generator().manual_seed(0), Sampler("processed_logprobs")
    found: Counter[str] = Counter()
    for done in range(BATCH, rows + 1, BATCH):
        batch = random_rows(dice)
        logits = torch.randn(BATCH, batch.vocabulary, generator=generator) * dice.choice((0.5, 2.0, 6.0))
        listed = sampler(logits.clone(), batch.metadata()).logprobs_tensors
        for at in range(BATCH):
            ids, logps = listed.logprob_token_ids[at].tolist(), listed.logprobs[at].tolist()
            if sum(map(math.isfinite, logps[1:])) >= LISTED:
                found["long"] += 1
                continue
            given = {token: logp for token, logp in zip(ids, logps, strict=True) if logp > NOTHING}
            left = batch.left(at, logits[at].numpy())
            apart = len(given.keys() ^ likely(left))
            found["differ"] += apart > 0
            found["most"] = max(found["most"], apart)
            if apart:
                least, most = (likely(batch.left(at, logits[at].numpy(), margin)) for margin in MARGINS)
                found["far"] += not least <= given.keys() <= most
            found["outside"] += not math.isfinite(logps[0])  # the drawn token comes first
            if not apart:
                found["wrong"] += abs(logps_of(left)[ids[0]] - logps[0]) > 1e-5
        if done % TOLD == 0 or done == rows:
            yield done, found


def chi_square(draws: int) -> tuple[float, int]:
    """How far the frequencies of draws are from their log-probabilities, and the degrees of freedom."""
    own = SamplingParams(temperature=0.8, top_p=0.95, top_k=12, min_p=0.01, presence_penalty=0.4, logit_bias={2: 1.0})
    rows, sampler = Rows(random.Random(1), 40, [own] * 500, False), Sampler("processed_logprobs")
    rows.prompts, rows.turns = [[7]] * 500, [[1, 5]] * 500
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(1)).expand(500, -1) * 1.5
    torch.manual_seed(0)
    counts, logps = Counter[int](), dict[int, float]()
    for _ in range(0, draws, 500):
        drawn = sampler(logits.clone(), rows.metadata())
        counts.update(drawn.sampled_token_ids[:, 0].tolist())
        listed = drawn.logprobs_tensors
        pairs = zip(listed.logprob_token_ids[0].tolist(), listed.logprobs[0].tolist(), strict=True)
        logps = {token: logp for token, logp in pairs if math.isfinite(logp)}
    expected = {token: draws * math.exp(logp) for token, logp in logps.items()}
    assert counts.keys() <= expected.keys()
    return sum((counts[token] - expected[token]) ** 2 / expected[token] for token in expected), len(expected) - 1


def main() -> None:
    """Print in how many rows the two differ, and how far frequencies are from what is expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="a multiple of 100")
    parser.add_argument("--draws", type=int, default=50_000)
    given = parser.parse_args()
    for done, found in compare(given.rows):
        print(
            f"{done} rows: {found['differ']} sets differ from the rule's, by {found['most']} ids at most, "
            f"{found['far']} of them by more than rounding; {found['outside']} tokens were outside; "
            f"{found['wrong']} log-probabilities differ by over 1e-5; "
            f"{found['long']} sets have {LISTED} ids or more, and are not told",
            flush=True,
        )
    square, freedom = chi_square(given.draws)
    print(f"{given.draws} draws: chi-square {square:.1f} with {freedom} degrees of freedom")


if __name__ == "__main__":
    main()
