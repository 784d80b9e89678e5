"""Loss terms that algorithms share: a value per trained token, not weighted yet."""

from __future__ import annotations

import torch
from torch import Tensor

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
