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
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from agentrl.attachments.support import SupportRecorder
from agentrl.rollout.engines.checks import most_probable
from agentrl.types import Sampling, TopLogprobs

_NEVER = -1e30  # below every log-probability but that of what can't be drawn
_ROUNDING = 0.01  # far above that of log-probabilities
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(slots=True)
class RowSampling:
    """A row's sampling: parameters, seed, position, tokens of turn and prompt (for penalties), and its supports.

    Attributes:
        allowed: of each token whether the row's grammar allows it; None where there is no grammar.
        narrowed: whether it is drawn by itself: from less than the softmax of its logits, or with its support recorded.
    """

    sampling: Sampling
    seed: int
    position: int
    generated: Sequence[int]
    prompt: Sequence[int] = ()
    support: SupportRecorder | None = None
    allowed: np.ndarray | None = None
    narrowed: bool = field(init=False)

    def __post_init__(self) -> None:
        self.narrowed = self.support is not None or not self.sampling.full_support


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
    u_B = uniform([row.seed for row in rows], [row.position for row in rows])
    narrowed = [at for at, row in enumerate(rows) if row.narrowed]
    plain = [at for at, row in enumerate(rows) if not row.narrowed]
    best = _most_probable(logp_BV, [row.sampling.top_logprobs for row in rows])
    if not narrowed:
        token_B = _draw(logp_BV, u_B)
        return token_B.tolist(), logp_BV.gather(1, token_B[:, None])[:, 0].tolist(), best
    tokens = [0] * len(rows)
    if plain:
        drawn = _draw(logp_BV[plain], u_B[plain])
        for index, token in zip(plain, drawn.tolist(), strict=True):
            tokens[index] = token
    own: dict[int, float] = {}
    for index in narrowed:
        row, u = rows[index], u_B[index : index + 1]
        tokens[index], recorded, candidates = _draw_narrowed(logits_BV[index], logp_BV[index], row, u)
        if recorded is not None:
            own[index], best[index] = recorded, candidates
    token_B1 = torch.tensor(tokens, device=logp_BV.device)[:, None]
    logps = logp_BV.gather(1, token_B1)[:, 0].tolist()
    return tokens, [own.get(index, logp) for index, logp in enumerate(logps)], best


def _draw(logp_BV: Tensor, u_B: np.ndarray) -> Tensor:
    """A place in each row, by inverse CDF."""
    cdf_BV = logp_BV.double().exp().cumsum(-1)
    target_B1 = torch.from_numpy(u_B).to(cdf_BV.device)[:, None] * cdf_BV[:, -1:]
    return torch.searchsorted(cdf_BV, target_B1, right=True)[:, 0].clamp_(max=logp_BV.shape[1] - 1)


def _draw_narrowed(
    logits_V: Tensor, logp_V: Tensor, row: RowSampling, u_1: np.ndarray
) -> tuple[int, float | None, TopLogprobs]:
    """Draw a row's token from less than the softmax of its logits.

    Args:
        logits_V: the row's logits.
        logp_V: their log-probabilities over the whole vocabulary.
        row: how it is sampled.
        u_1: its random number.

    Returns:
        The token, and, where its support is recorded, its log-probability and the most probable tokens of that set.
    """
    sampling = row.sampling
    if _is_reweighted(sampling) or row.allowed is not None:
        logits_V = _reweigh(logits_V, row)
        logp_V = torch.log_softmax(logits_V / (sampling.temperature or 1.0), dim=-1)
    if sampling.temperature == 0:
        return int(logp_V.argmax()), None, ()
    kept_K = _list_kept(logp_V, sampling)
    left_K = logp_V if kept_K is None else logp_V[kept_K]
    place = int(_draw(left_K[None], u_1))
    token = place if kept_K is None else int(kept_K[place])
    if row.support is None:
        return token, None, ()
    row.support.add(None if kept_K is None else kept_K.cpu().numpy(), token)
    if kept_K is not None:  # from the logits themselves: rounded once, as the trainer's
        left_K = torch.log_softmax(logits_V[kept_K] / sampling.temperature, dim=-1)
    best = _most_probable(left_K[None], [sampling.top_logprobs])[0]
    named = best if kept_K is None else tuple((int(kept_K[at]), logp) for at, logp in best)
    return token, float(left_K[place]), named


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


def _is_reweighted(sampling: Sampling) -> bool:
    return bool(sampling.logit_bias or sampling.penalised)


def _reweigh(logits_V: Tensor, row: RowSampling) -> Tensor:
    logits_V = logits_V.clone()
    sampling = row.sampling
    if row.allowed is not None:
        logits_V[torch.from_numpy(~row.allowed).to(logits_V.device)] = -torch.inf
    if sampling.repetition_penalty != 1:
        seen = torch.tensor(list({*row.prompt, *row.generated}), device=logits_V.device)
        found = logits_V[seen]
        penalty = sampling.repetition_penalty
        logits_V[seen] = torch.where(found > 0, found / penalty, found * penalty)
    if row.generated and (sampling.presence_penalty or sampling.frequency_penalty):
        token_N, count_N = torch.unique(torch.tensor(row.generated, device=logits_V.device), return_counts=True)
        logits_V[token_N] -= sampling.presence_penalty + sampling.frequency_penalty * count_N
    for token, bias in sampling.logit_bias:
        logits_V[token] += bias
    return logits_V


def _list_kept(logp_V: Tensor, sampling: Sampling) -> Tensor | None:
    """The ids that grammar, top-k, top-p and min-p leave, ascending; None where that is all of them.

    Of equally probable tokens the lower id comes first. Top-p sorts no more than it has to: tokens that have less than
    (1 - p) / V each have less than 1 - p together, so none of them is left.
    """
    floor, count, mass = _NEVER, min(sampling.top_k or len(logp_V), len(logp_V)), 1.0
    if sampling.min_p > 0:
        floor = float(logp_V.max()) + math.log(sampling.min_p)
    if count < len(logp_V):
        best_K = logp_V.topk(count).values
        floor, mass = max(floor, float(best_K[-1])), float(best_K.exp().sum())
    elif sampling.top_p < 1:
        floor = max(floor, min(float(logp_V.max()), math.log((1 - sampling.top_p) / len(logp_V)) - _ROUNDING))
    kept_N = (logp_V >= floor).nonzero()[:, 0]
    if sampling.top_p >= 1 and len(kept_N) <= count:
        return None if len(kept_N) in (0, len(logp_V)) else kept_N
    ordered_N, place_N = logp_V[kept_N].sort(descending=True, stable=True)
    ordered_N, place_N = ordered_N[:count], place_N[:count]
    if sampling.top_p < 1:
        prob_N = ordered_N.exp()
        within_N = prob_N.cumsum(-1) - prob_N < sampling.top_p * mass
        within_N[:1] = True
        place_N = place_N[within_N]
    return kept_N[place_N.sort().values] if len(place_N) else None
