"""Sampling tokens from logits, for all rows of a batch at once, with a counter-based random number for each.

A token is sampled by inverse CDF from one uniform number, a hash of (seed, position); there is no random state. So a
request gets the same tokens whatever else is in the batch, and a turn that was aborted and continues from its tokens
gets the same ones as without the abort.

Log-probabilities are those of the whole vocabulary at the sampling temperature (of temperature 1 where it is 0), before
top-p, top-k, min-p, penalties and biases; `Sampling.full_support` is true where that is also what the token was sampled
from. Of a row whose support is recorded they are of the distribution that the token was sampled from, by the rule
`support.LOCAL`: grammar, penalties and biases, temperature, top-k, top-p, min-p, which is vLLM's order of filters.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentrl.attachments.support import SupportRecorder
from agentrl.rollout.engines.checks import most_probable
from agentrl.types import Sampling, TopLogprobs

_FIRST = 1024
"""The most probable tokens that top-p looks at first: sorting a whole vocabulary takes longer than a small model."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class RowSampling:
    """A row's sampling: parameters, seed, position, tokens of turn and prompt (for penalties), and its supports.

    `allowed` says of each token whether the row's grammar allows it; None where there is no grammar.
    """

    sampling: Sampling
    seed: int
    position: int
    generated: Sequence[int]
    prompt: Sequence[int] = ()
    support: SupportRecorder | None = None
    allowed: np.ndarray | None = None


def uniform(seeds: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """One number in [0, 1) for each (seed, position): the SplitMix64 finaliser (Steele et al., 2014), twice."""
    seed_B = np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], dtype=np.uint64)
    position_B = np.array(positions, dtype=np.uint64)
    with np.errstate(over="ignore"):
        mixed_B = _mix(_mix(seed_B + _GOLDEN) ^ (position_B * _GOLDEN + np.uint64(1)))
    return (mixed_B >> np.uint64(11)).astype(np.float64) * 2.0**-53


def sample(logits_BV: Tensor, rows: Sequence[RowSampling]) -> tuple[list[int], list[float], list[TopLogprobs]]:
    """A token for each row, and its log-probability at the row's temperature; supports are recorded where rows say so.

    Args:
        logits_BV: float32.
        rows: how each row is sampled.

    Returns:
        Tokens, log-probabilities, and of the same distribution each row's most probable tokens, as many as it asks for.
    """
    temperature_B = [row.sampling.temperature for row in rows]
    logp_BV = log_probs(logits_BV, [t if t > 0 else 1.0 for t in temperature_B])
    plain = all(row.sampling.full_support for row in rows)
    sampled_BV = logp_BV if plain else _narrowed(logits_BV, logp_BV, rows)
    u_B = uniform([row.seed for row in rows], [row.position for row in rows])
    cdf_BV = sampled_BV.double().exp().cumsum(-1)
    target_B1 = torch.from_numpy(u_B).to(cdf_BV.device)[:, None] * cdf_BV[:, -1:]
    token_B = torch.searchsorted(cdf_BV, target_B1, right=True)[:, 0].clamp_(max=logits_BV.shape[1] - 1)
    if 0 in temperature_B:
        greedy_B = torch.tensor([t == 0 for t in temperature_B], device=token_B.device)
        token_B = torch.where(greedy_B, sampled_BV.argmax(-1), token_B)
    if any(row.support is not None for row in rows):
        logp_BV = _recorded(logp_BV, sampled_BV, token_B, rows)
    chosen_B = logp_BV.gather(1, token_B[:, None])[:, 0]
    return token_B.tolist(), chosen_B.tolist(), _most_probable(logp_BV, [row.sampling.top_logprobs for row in rows])


def _recorded(logp_BV: Tensor, sampled_BV: Tensor, token_B: Tensor, rows: Sequence[RowSampling]) -> Tensor:
    """Record the supports of rows that want it; their log-probabilities become those that they were sampled from."""
    logp_BV = logp_BV.clone()
    for index, row in enumerate(rows):
        if row.support is None:
            continue
        sampled_V, drawn = sampled_BV[index], int(token_B[index])
        kept_V = sampled_V.isfinite()
        row.support.add(kept_V.nonzero()[:, 0].cpu().numpy(), drawn)
        if bool(kept_V[drawn]):  # else it is not trained, and its log-probability only has to be a number
            logp_BV[index] = sampled_V - sampled_V.logsumexp(-1)
    return logp_BV


def _most_probable(logp_BV: Tensor, count_B: Sequence[int]) -> list[TopLogprobs]:
    wanted = [index for index, count in enumerate(count_B) if count]
    found: list[TopLogprobs] = [()] * len(count_B)
    if wanted:
        best, tokens = logp_BV[wanted].topk(min(max(count_B), logp_BV.shape[1]), dim=-1)
        for index, logps, ids in zip(wanted, best.tolist(), tokens.tolist(), strict=True):
            found[index] = most_probable(zip(ids, logps, strict=True), count_B[index])
    return found


def log_probs(logits_BV: Tensor, temperature_B: Sequence[float]) -> Tensor:
    """Log-softmax of each row at its own temperature."""
    if any(t != 1.0 for t in temperature_B):
        logits_BV = logits_BV / torch.tensor(temperature_B, device=logits_BV.device)[:, None]
    return torch.log_softmax(logits_BV, dim=-1)


def _mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = z ^ (z >> np.uint64(31))
    return mixed


def _reweighted(sampling: Sampling) -> bool:
    return bool(sampling.logit_bias or sampling.penalised)


def _narrowed(logits_BV: Tensor, logp_BV: Tensor, rows: Sequence[RowSampling]) -> Tensor:
    """Log-probabilities to sample from, where a row's support is narrowed or reweighted."""
    sampled_BV = logp_BV.clone()
    for index, row in enumerate(rows):
        sampling = row.sampling
        if _reweighted(sampling) or row.allowed is not None:
            temperature = sampling.temperature or 1.0
            sampled_BV[index] = torch.log_softmax(_reweigh(logits_BV[index], row) / temperature, dim=-1)
        if sampling.temperature > 0:
            sampled_BV[index] = _filtered(sampled_BV[index], sampling)
    return sampled_BV


def _reweigh(logits_V: Tensor, row: RowSampling) -> Tensor:
    logits_V = logits_V.clone()
    sampling = row.sampling
    if row.allowed is not None:
        logits_V[torch.from_numpy(~row.allowed).to(logits_V.device)] = -torch.inf
    if sampling.repetition_penalty != 1:
        seen = torch.tensor(sorted({*row.prompt, *row.generated}), device=logits_V.device)
        found = logits_V[seen]
        penalty = sampling.repetition_penalty
        logits_V[seen] = torch.where(found > 0, found / penalty, found * penalty)
    for token, count in Counter(row.generated).items():
        logits_V[token] -= sampling.presence_penalty + sampling.frequency_penalty * count
    for token, bias in sampling.logit_bias:
        logits_V[token] += bias
    return logits_V


def _filtered(logp_V: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities of the tokens that top-k, top-p and min-p leave, minus infinity elsewhere."""
    floor = -math.inf if sampling.min_p == 0 else float(logp_V.max()) + math.log(sampling.min_p)
    if sampling.top_k is None and sampling.top_p >= 1:
        return logp_V.masked_fill(logp_V < floor, -torch.inf)
    size = min(len(logp_V), _FIRST if sampling.top_k is None else sampling.top_k)
    while True:
        ordered_N, index_N = _most_probable_first(logp_V, size)
        keep_N = ordered_N >= floor
        if sampling.top_p < 1:
            total = logp_V if sampling.top_k is None else ordered_N
            prob_N = (ordered_N - total.logsumexp(-1)).exp()
            keep_N &= prob_N.cumsum(-1) - prob_N < sampling.top_p
        if sampling.top_k is not None or size == len(logp_V) or not bool(keep_N[-1]):
            break
        size = min(8 * size, len(logp_V))
    keep_N[0] = True
    return torch.full_like(logp_V, -torch.inf).scatter(0, index_N[keep_N], ordered_N[keep_N])


def _most_probable_first(logp_V: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The `size` most probable tokens' log-probabilities and ids, of equal ones the lower id first."""
    if 4 * size > len(logp_V):
        ordered_V, index_V = logp_V.sort(descending=True, stable=True)
        return ordered_V[:size], index_V[:size]
    candidates = (logp_V >= logp_V.topk(size).values[-1]).nonzero()[:, 0]
    ordered_N, place_N = logp_V[candidates].sort(descending=True, stable=True)
    return ordered_N[:size], candidates[place_N[:size]]
