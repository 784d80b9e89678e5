"""Loss terms that algorithms share: a value per trained token, not weighted yet."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from agentrl.errors import InvalidInput
from agentrl.train.algorithms.tokens import Tokens
from agentrl.train.forest.forest import Rows


def clipped(tokens: Tokens, low: float, high: float, ratio: Tensor | None = None, dual: float | None = None) -> Tensor:
    """PPO's clipped surrogate, negated, with separate bounds below and above: [P].

    It logs `policy/clip_fraction`: the share of tokens whose gradient the clip takes away.

    Args:
        tokens: with advantages.
        low: the ratio is clipped below at 1 - low.
        high: the ratio is clipped above at 1 + high.
        ratio: [P], of whatever is clipped; None is the tokens' own ratio.
        dual: with a negative advantage the ratio is clipped above at this besides; None: not at all.
    """
    r = tokens.ratio if ratio is None else ratio
    outside = ((r > 1 + high) & (tokens.advantage > 0)) | ((r < 1 - low) & (tokens.advantage < 0))
    loss = -torch.minimum(r * tokens.advantage, r.clamp(1 - low, 1 + high) * tokens.advantage)
    if dual is not None:
        outside |= (r > dual) & (tokens.advantage < 0)
        loss = torch.where(tokens.advantage < 0, torch.minimum(loss, -dual * tokens.advantage), loss)
    tokens.metrics["policy/clip_fraction"] = outside.float()
    return loss


def score_function(tokens: Tokens) -> Tensor:
    """REINFORCE with an importance weight: -ratio · logp · advantage, no gradient through the ratio: [P].

    The weight is exactly 1 for tokens that the policy before the step's first update sampled, until that update.
    """
    return tokens.ratio.detach() * (-tokens.logp * tokens.advantage)


def k3(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """KL(pi || ref) per sampled token by Schulman's k3 (joschu.net/blog/kl-approx.html): unbiased, never negative."""
    delta = ref_logp - logp
    return torch.exp(delta) - delta - 1


def value_error(values: Tensor, rows: Rows, clip: float | None) -> Tensor:
    """Half the squared distance of a critic's values from the returns, [P].

    With a `clip`, the greater of it and the distance of a value that moved no further than that, as PPO's
    reference implementation has it (github.com/openai/baselines, ppo2).
    """
    if not len(rows):  # of a forest that only keeps a rank busy
        return values
    if rows.returns is None or rows.value is None:
        raise InvalidInput("a critic learns from returns, and this credit gives none: see `NodeAdvantage.returns`")
    error = (values - rows.returns).square()
    if clip is not None:
        near = rows.value + (values - rows.value).clamp(-clip, clip)
        error = torch.maximum(error, (near - rows.returns).square())
    return 0.5 * error


def smoothed_logistic(margin: Tensor, smoothing: float) -> Tensor:
    """-log sigmoid of the margin, where labels are wrong at a rate of `smoothing` (conservative DPO).

    E. Mitchell, A note on DPO with noisy preferences and relationship to IPO (2023).
    """
    return -(1 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin)


def unbiased_logistic(margin: Tensor, smoothing: float) -> Tensor:
    """Likewise with the bias of wrong labels taken out: Chowdhury et al., arXiv:2403.00409."""
    return (smoothing * logsigmoid(-margin) - (1 - smoothing) * logsigmoid(margin)) / (1 - 2 * smoothing)


def log_odds(logp: Tensor) -> Tensor:
    """log(p / (1 - p)) of log-probabilities, at most -1e-7."""
    logp = logp.clamp(max=-1e-7)
    small = logp > -math.log(2)  # where 1 - p is precise by expm1; elsewhere by log1p (Maechler, 2012)
    rest = torch.where(
        small, (-torch.expm1(logp.where(small, -1.0))).log(), torch.log1p(-logp.where(~small, -1.0).exp())
    )
    return logp - rest
