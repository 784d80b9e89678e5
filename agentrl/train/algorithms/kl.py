"""The KL divergence to the reference policy at sampled tokens: estimators, and their gradients as a loss.

With x sampled by pi and d = log pi(x) - log ref(x) (Schulman, joschu.net/blog/kl-approx.html):

    k1 = d                      unbiased
    k2 = d² / 2                 biased, never negative
    k3 = exp(-d) - 1 + d        unbiased, never negative

The derivative of an estimate is not an estimate of the derivative, since x depends on pi, too (arXiv:2506.09477). In
expectation over x, k1's derivative is 0, k2's is that of KL(pi || ref), and k3's, which GRPO uses, that of
KL(ref || pi). The gradient of KL(pi || ref) is E[d · grad log pi]; for tokens that pi_old sampled, it needs the weight
pi / pi_old. Each is per token, given the tokens before it; how a token changes what follows is part of
`algo.kl_as=reward` only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from agentrl.train.algorithms.losses import k3
from agentrl.train.algorithms.tokens import Tokens

Estimator = Literal["k1", "k2", "k3"]


def estimate(logp: Tensor, ref_logp: Tensor, estimator: Estimator) -> Tensor:
    """The KL(pi || ref) estimate at each sampled token, in nats, in the shape of the arguments."""
    match estimator:
        case "k1":
            return logp - ref_logp
        case "k2":
            return 0.5 * (logp - ref_logp).square()
        case "k3":
            return k3(logp, ref_logp)


def kl_loss(tokens: Tokens, estimator: Estimator, gradient: Literal["estimator", "exact"]) -> Tensor:
    """The penalty of each token as a loss: [P]; see `AlgoConfig.kl_gradient`.

    Args:
        tokens: with `ref_logp`.
        estimator: whose value it has.
        gradient: `estimator`: the estimate itself. `exact`: the estimate weighted by the ratio, and the gradient of
            KL(pi || ref).
    """
    assert tokens.ref_logp is not None
    value = estimate(tokens.logp, tokens.ref_logp, estimator)
    if gradient == "estimator":
        return value
    slope = (tokens.logp - tokens.ref_logp).detach() * tokens.logp
    return tokens.ratio.detach() * (value.detach() + slope - slope.detach())


def summed_estimate(
    logps: Sequence[float], ref_logps: Sequence[float], places: Sequence[int], estimator: Estimator
) -> float:
    """The sum of the estimates over a turn's tokens at `places`, as float64."""
    logp, ref_logp = (torch.tensor([x[i] for i in places], dtype=torch.float64) for x in (logps, ref_logps))
    return float(estimate(logp, ref_logp, estimator).sum())
