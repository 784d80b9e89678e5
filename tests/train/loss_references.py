"""Policy losses written out from their papers, for one row: a path, or a turn on it.

A row has log-probabilities of its tokens under the current and the old policy (the one that a ratio is against), and
one advantage. Each function gives a value for every token, whose weighted sum is the row's loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from agentrl.train.algorithms.policy_losses import LossConfig


def ppo(ratio: Tensor, advantage: float, low: float, high: float) -> Tensor:
    """arXiv:1707.06347, equation 7."""
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def clipped(now: Tensor, old: Tensor, advantage: float, c: LossConfig) -> Tensor:
    """PPO's; dual clip by arXiv:1912.09729, equation 5."""
    loss = ppo((now - old).exp(), advantage, c.clip_low, c.clip_high)  # type: ignore[attr-defined]
    dual = c.dual_clip  # type: ignore[attr-defined]
    return loss if dual is None or advantage >= 0 else loss.clamp(max=-dual * advantage)


def importance_sampling(now: Tensor, old: Tensor, advantage: float, c: LossConfig) -> Tensor:
    return -(now - old).exp().detach() * now * advantage


def gspo(now: Tensor, old: Tensor, advantage: float, c: LossConfig) -> Tensor:
    """arXiv:2507.18071, equations 5 and 7."""
    ratio = (now - old).mean().exp()
    return ppo(ratio, advantage, c.clip_low, c.clip_high).expand(len(now))  # type: ignore[attr-defined]


def gspo_token(now: Tensor, old: Tensor, advantage: float, c: LossConfig) -> Tensor:
    """arXiv:2507.18071, the token-level variant."""
    ratio = (now - old).mean().exp().detach() * now.exp() / now.exp().detach()
    return ppo(ratio, advantage, c.clip_low, c.clip_high)  # type: ignore[attr-defined]


def gmpo(now: Tensor, old: Tensor, advantage: float, c: LossConfig) -> Tensor:
    """arXiv:2507.20673: prod_t min(r^s, clip(r, e^-low, e^high)^s)^s, with s = sign(A)."""
    r, sign = (now - old).exp(), math.copysign(1.0, advantage)
    bounded = r.clamp(math.exp(-c.clip_low), math.exp(c.clip_high))  # type: ignore[attr-defined]
    smaller = torch.minimum(r**sign, bounded**sign) ** sign
    return -(advantage * smaller.prod() ** (1 / len(r))).expand(len(r))


def cispo(now: Tensor, old: Tensor, advantage: float, c: LossConfig) -> Tensor:
    """arXiv:2506.13585."""
    weight = (now - old).exp().clamp(1 - c.clip_low, 1 + c.clip_high)  # type: ignore[attr-defined]
    return -weight.detach() * advantage * now


def sapo(now: Tensor, old: Tensor, advantage: float, c: LossConfig) -> Tensor:
    """arXiv:2511.20347."""
    tau = c.tau_positive if advantage > 0 else c.tau_negative  # type: ignore[attr-defined]
    return -(4 / tau) / (1 + (-tau * ((now - old).exp() - 1)).exp()) * advantage


def topr(now: Tensor, old: Tensor, advantage: float, c: LossConfig) -> Tensor:
    """arXiv:2503.14286, the TOPR gradient."""
    whole = (now - old).sum().exp().detach()
    return -(1.0 if advantage >= 0 else whole.clamp(0, 1)) * advantage * now


def vespo(now: Tensor, old: Tensor, advantage: float, c: LossConfig) -> Tensor:
    """arXiv:2602.10693: the gamma kernel over the sequence's ratio, 1 at a ratio of 1."""
    side = "positive" if advantage >= 0 else "negative"
    k, rate = getattr(c, f"k_{side}"), getattr(c, f"lambda_{side}")
    whole = (now - old).sum().exp().detach()
    return -(whole**k * (rate * (1 - whole)).exp()) * advantage * now


def dppo(now: Tensor, old: Tensor, advantage: float, c: LossConfig) -> Tensor:
    """arXiv:2602.04879, equations 11 to 14, with the binary divergences."""
    p, q = now.exp().detach(), old.exp()
    kl = q * (q / p).log() + (1 - q) * ((1 - q + 1e-8) / (1 - p + 1e-8)).log()
    far = kl if c.divergence == "kl" else (p - q).abs()  # type: ignore[attr-defined]
    masked = (far > c.threshold) & ((p > q) if advantage > 0 else (p < q))  # type: ignore[attr-defined]
    return -torch.where(masked, 0.0, (p / q).clamp(max=c.ratio_max)) * advantage * now  # type: ignore[attr-defined]


def dro(now: Tensor, old: Tensor, advantage: float, c: LossConfig) -> Tensor:
    """arXiv:2405.19107, up to a constant, with the advantage for r - V and the old policy as reference."""
    return -advantage * now + c.beta / 2 * (now - old) ** 2  # type: ignore[attr-defined]


REFERENCES: dict[str, Callable[[Tensor, Tensor, float, LossConfig], Tensor]] = {
    each.__name__: each
    for each in (clipped, importance_sampling, gspo, gspo_token, gmpo, cispo, sapo, topr, vespo, dppo, dro)
}

SETTINGS: dict[str, list[dict[str, object]]] = {
    "clipped": [{"clip_low": 0.1, "clip_high": 0.2}, {"clip_low": 0.1, "clip_high": 0.2, "dual_clip": 1.25}],
    "gspo": [{"clip_low": 0.1, "clip_high": 0.2}],
    "gspo_token": [{"clip_low": 0.1, "clip_high": 0.2}],
    "gmpo": [{"clip_low": 0.1, "clip_high": 0.15}],
    "cispo": [{"clip_low": 0.2, "clip_high": 0.1}],
    "topr": [{}],
    "dppo": [{"threshold": 0.003}, {"threshold": 0.0005, "divergence": "kl", "ratio_max": 1.2}],
}
"""Settings under which the bounds of random tokens matter."""
