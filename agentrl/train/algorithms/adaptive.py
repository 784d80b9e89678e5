"""Numbers that follow a run: adaptive coefficients, and the running moments that rewards and returns are scaled by.

They belong to the run's algorithm, are part of its snapshot, and so of every checkpoint; the snapshot is sent to the
trainer's own instances of the algorithm before each step, so a loss uses the coefficients that a checkpoint has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from agentrl.config import AlgoConfig

KL_ERROR = 0.2
"""Relative errors of the KL are clipped to this (Ziegler et al., arXiv:1909.08593, section 2.2)."""


@dataclass(slots=True)
class Moments:
    """Running weight, mean and sum of squared deviations of numbers (Chan, Golub and LeVeque, 1979)."""

    weight: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, weighted: Iterable[tuple[float, float]]) -> None:
        """Count (weight, number) pairs as one batch."""
        pairs = list(weighted)
        weight = math.fsum(w for w, _ in pairs)
        if not weight:
            return
        mean = math.fsum(w * x for w, x in pairs) / weight
        squares = math.fsum(w * (x - mean) ** 2 for w, x in pairs)
        total, distance = self.weight + weight, mean - self.mean
        self.squares += squares + distance**2 * self.weight * weight / total
        self.mean += distance * weight / total
        self.weight = total

    @property
    def deviation(self) -> float:
        """The standard deviation of all numbers so far; 0 before there are any."""
        return math.sqrt(self.squares / self.weight) if self.weight else 0.0


@dataclass(slots=True)
class Adaptive:
    """Settings that change during a run.

    Attributes:
        kl_coef: the current weight of the KL penalty.
        entropy_weight: of the entropy bonus, where entropy is at or below its target.
        entropy: the last step's, per trained token; None before the first.
        rewards: moments of all sessions' scores.
        returns: moments of all trained tokens' returns, by their weight in the loss.
        entropy_target: see `AlgoConfig.entropy_target`.
    """

    kl_coef: float
    entropy_weight: float
    entropy_target: float | None = None
    entropy: float | None = None
    rewards: Moments = field(default_factory=Moments)
    returns: Moments = field(default_factory=Moments)

    @classmethod
    def of(cls, config: AlgoConfig) -> Adaptive:
        """Return the settings at a run's beginning."""
        return cls(config.kl_coef, config.entropy_coef, config.entropy_target)

    @property
    def entropy_coef(self) -> float:
        """The current weight of the entropy bonus: 0 where entropy is above its target."""
        above = self.entropy_target is not None and self.entropy is not None and self.entropy > self.entropy_target
        return 0.0 if above else self.entropy_weight

    def update(self, config: AlgoConfig, metrics: Mapping[str, float]) -> None:
        """Adapt the coefficients to a step's metrics; a step without trained tokens changes nothing."""
        kl, entropy = metrics.get("policy/kl_reference"), metrics.get("policy/entropy")
        if config.kl_target is not None and kl is not None:
            error = min(max(kl / config.kl_target - 1, -KL_ERROR), KL_ERROR)
            self.kl_coef *= 1 + config.kl_rate * error
        if config.entropy_target is not None and entropy is not None:
            sign = (entropy < config.entropy_target) - (entropy > config.entropy_target)
            weight = max(0.0, self.entropy_weight + sign * config.entropy_rate)
            self.entropy_weight = weight if config.entropy_coef_max is None else min(weight, config.entropy_coef_max)
            self.entropy = entropy

    def metrics(self, config: AlgoConfig) -> dict[str, float]:
        """The coefficients that change, as a run logs them."""
        kl = {"adaptive/kl_coef": self.kl_coef} if config.kl_target is not None else {}
        return kl | ({"adaptive/entropy_coef": self.entropy_coef} if config.entropy_target is not None else {})

    def state(self) -> dict[str, Any]:
        """Return what changes, as JSON; nothing of the settings."""
        state = asdict(self)
        del state["entropy_target"]
        return state

    def restore(self, state: Mapping[str, Any], config: AlgoConfig) -> None:
        """Take over what `state` returned; coefficients that the settings fix remain theirs."""
        self.rewards, self.returns = Moments(**state["rewards"]), Moments(**state["returns"])
        self.entropy = state["entropy"]
        self.kl_coef = config.kl_coef if config.kl_target is None else state["kl_coef"]
        self.entropy_weight = config.entropy_coef if config.entropy_target is None else state["entropy_weight"]
