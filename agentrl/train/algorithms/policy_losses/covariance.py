"""Clip-Cov and KL-Cov (Cui et al., arXiv:2505.22617, section 4): what lowers entropy most is held back, token by token.

A token's part in the change of the policy's entropy is the covariance of its log-probability and its advantage,

    cov_i = (log π(i) - mean of log π) · (A_i - mean of A)

and few tokens have almost all of it. The means are over the step's batch: all trained tokens of all forests and ranks,
a shared token once with its mean advantage, each weighing the same. π is the policy that sampled, so the choice is made
once for a step, by data that no split of the batch changes; it is what the paper computes before the first update.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from agentrl.config import Fraction
from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.policy_losses.base import LossConfig, PolicyLoss
from agentrl.train.algorithms.policy_losses.clipped import Clipped, ClippedConfig

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train.algorithms.tokens import Tokens
    from agentrl.train.forest.forest import Forest

Share = Annotated[float, Field(gt=0, le=1)]


class ClipCovConfig(ClippedConfig):
    """Settings of `clip_cov`; the defaults are the paper's, and its authors' wide clip of ratios."""

    clip_low: Fraction = 1.0
    """The ratio is clipped below at 1 - clip_low; 1: not at all."""
    clip_high: NonNegativeFloat = 1.0
    share: Share = 2e-4
    """The share of the batch's trained tokens that get no gradient; one token at least."""
    covariance_low: float = 1.0
    """They are chosen at random among those whose covariance is above this …"""
    covariance_high: float = 5.0
    """… and below this."""

    @model_validator(mode="after")
    def _check_order(self) -> ClipCovConfig:
        if self.covariance_low >= self.covariance_high:
            raise ValueError(
                f"covariance_low={self.covariance_low} must be below covariance_high={self.covariance_high}"
            )
        return self


class ClipCov(Clipped):
    """The clipped ratio, without gradient at a few random tokens of high covariance (section 4.2)."""

    name = "clip_cov"
    settings = ClipCovConfig
    about = About(
        "Clip-Cov, arXiv:2505.22617",
        "as clipped; 0 at random tokens with low < cov < high, cov = (log π - mean)(A - mean) over the batch",
        "entropy that collapses",
        "verl: clip_cov",
    )
    config: ClipCovConfig

    def mark(self, forests: Sequence[Forest]) -> None:
        """Mark the tokens without gradient. "Random" is by a hash of session, node and place, so it is reproducible."""
        tokens = _BatchTokens(forests)
        covariance = tokens.covariance()
        inside = (covariance > self.config.covariance_low) & (covariance < self.config.covariance_high)
        tokens.mark(tokens.some_of(inside, _count(self.config.share, tokens)))

    def __call__(self, tokens: Tokens) -> Tensor:
        loss = super().__call__(tokens)
        tokens.metrics["policy/covariance_fraction"] = tokens.marked.float()
        return loss.masked_fill(tokens.marked, 0.0)


class KlCovConfig(LossConfig):
    """Settings of `kl_cov`; the defaults are the paper's, for a model of 7 B."""

    share: Share = 2e-3
    """The share of the batch's trained tokens that get a penalty: those of the highest covariance; one at least."""
    beta: PositiveFloat = 1.0
    """Weight of the penalty."""


class KlCov(PolicyLoss):
    """-r A, and a penalty on the distance from the old policy at the tokens of the highest covariance (section 4.2).

    Before a step's first update |log r| is 0 with gradient 0 at fresh tokens: the penalty needs `algo.epochs` or
    `algo.minibatches` above 1, or tokens of an older version.
    """

    name = "kl_cov"
    settings = KlCovConfig
    about = About(
        "KL-Cov, arXiv:2505.22617",
        "-r A, and + β |log r| at the tokens of the highest cov, as in clip_cov",
        "entropy that collapses; several updates for each batch",
        "verl: kl_cov",
    )
    affine = True
    config: KlCovConfig

    def mark(self, forests: Sequence[Forest]) -> None:
        """Mark the tokens with a penalty; of equal ones some, by a hash as in `ClipCov`."""
        tokens = _BatchTokens(forests)
        covariance, count = tokens.covariance(), _count(self.config.share, tokens)
        if not count:
            return tokens.mark(covariance > 0)
        least = np.partition(covariance, -count)[-count]
        above = covariance > least
        tokens.mark(above | tokens.some_of(covariance == least, count - int(above.sum())))

    def __call__(self, tokens: Tokens) -> Tensor:
        penalty = self.config.beta * (tokens.logp - tokens.old_logp).abs()
        tokens.metrics["policy/covariance_fraction"] = tokens.marked.float()
        return penalty * tokens.marked - tokens.ratio * tokens.advantage


def _count(share: float, tokens: _BatchTokens) -> int:
    return min(max(int(share * len(tokens)), 1), len(tokens))


class _BatchTokens:
    """A batch's trained tokens, N of them, in the order of its forests."""

    def __init__(self, forests: Sequence[Forest]) -> None:
        self.forests = forests
        self.places = [np.flatnonzero(forest.weight.cpu().numpy() > 0) for forest in forests]

    def __len__(self) -> int:
        return sum(map(len, self.places))

    def covariance(self) -> NDArray[np.float64]:
        """The covariance, [N]. Means are rounded once, so they don't depend on the order of tokens."""
        logp, plus = self._of("behaviour_logp"), self._of("advantage")
        advantage = plus + self._of("advantage_minus")
        if not len(self):
            return logp
        return (logp - math.fsum(logp) / len(self)) * (advantage - math.fsum(advantage) / len(self))

    def some_of(self, candidates: NDArray[np.bool_], count: int) -> NDArray[np.bool_]:
        """Choose at most `count` of the candidates, [N]: those with the lowest hashes."""
        index = np.flatnonzero(candidates)
        if len(index) > count:
            named = [(forest, int(i)) for forest, place in zip(self.forests, self.places, strict=True) for i in place]
            index = np.array(sorted(index.tolist(), key=lambda i: _hash(*named[i]))[:count])
        chosen = np.zeros(len(self), dtype=bool)
        chosen[index] = True
        return chosen

    def mark(self, chosen: NDArray[np.bool_]) -> None:
        ends = np.cumsum([len(place) for place in self.places], dtype=np.intp)
        for forest, place, part in zip(self.forests, self.places, np.split(chosen, ends)[:-1], strict=True):
            marked = forest.weight.new_zeros(len(forest)).bool()
            marked[place[part]] = True
            forest.marked = marked

    def _of(self, field: str) -> NDArray[np.float64]:
        """A field at the trained tokens, [N]; zeros where the forests lack it."""
        found = [np.zeros(0)]
        for forest, place in zip(self.forests, self.places, strict=True):
            values = getattr(forest, field)
            found.append(np.zeros(len(place)) if values is None else values.cpu().numpy()[place])
        return np.concatenate(found).astype(np.float64)


def _hash(forest: Forest, place: int) -> bytes:
    """A number for a token that neither packing nor the other sessions decide."""
    session = forest.sessions[int(forest.session_id[place])]
    name = f"{session}/{int(forest.node_id[place])}/{int(forest.position[place])}"
    return blake2b(name.encode(), digest_size=8).digest()
