"""GDPO (Liu et al., arXiv:2601.05242): each named reward is normalised in its group by itself, then they are added."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence

from pydantic import Field, model_validator

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.branch_returns import SAME, STD_FLOOR
from agentrl.train.algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from agentrl.train.algorithms.returns import Found, by_session
from agentrl.train.algorithms.shaping import SHAPED
from agentrl.types import Session


class GdpoConfig(PolicyGradientConfig):
    """Settings of `gdpo`."""

    weights: dict[str, float] = Field(default={})
    """The weight of each reward by its name; empty: 1 for each that the sessions have. Others are left out."""

    @property
    def named_rewards(self) -> Mapping[str, Collection[str]]:
        """Those that are weighed."""
        return {"weights": self.weights.keys() - {SHAPED}}

    @model_validator(mode="after")
    def _no_kl_reward(self) -> GdpoConfig:
        if self.kl_coef and self.kl_as == "reward":
            raise ValueError("kl_as=reward: gdpo normalises rewards, so kl_coef would mean nothing; use kl_as=loss")
        return self


class Gdpo(PolicyGradient):
    """The sum over rewards of weight · (r - mean) / std, standardised over the batch's trained tokens.

    A session without one of the rewards has the reward's mean. Step rewards are not read. What `algo.shaping` adds to
    a session, for its turns' format as well, is one more reward, `algo.shaping`, of weight 1 unless `weights` has it.
    """

    name = "gdpo"
    settings = GdpoConfig
    about = About(
        "GDPO, arXiv:2601.05242",
        "Σ_k w_k (r_k - mean_k) / (std_k + 1e-4) over the group, then standardised over the batch's tokens",
        "several rewards of different scales or frequencies",
        "TRL: multi_objective_aggregation=normalize_then_sum; verl: gdpo",
    )
    group_size = 2
    whole_sessions = True
    whitened = True
    config: GdpoConfig

    def judge(self, sessions: Sequence[Session]) -> Found:
        names = sorted({name for session in sessions for name in session.rewards})
        added = {SHAPED: 1.0} if SHAPED in names else {}
        weights = added | (self.config.weights or dict.fromkeys(names, 1.0))
        parts = [[weight * x for x in _normalise(sessions, name)] for name, weight in weights.items()]
        return by_session(sessions, [math.fsum(each) for each in zip(*parts, strict=True)] or [0.0] * len(sessions))


def _normalise(sessions: Sequence[Session], name: str) -> list[float]:
    """One reward, less its mean in the group, over its standard deviation; zeros where it does not differ."""
    given = [s.rewards[name] for s in sessions if name in s.rewards]
    if len(given) < 2 or max(given) - min(given) < SAME:
        return [0.0] * len(sessions)
    mean, deviation = statistics.fmean(given), statistics.stdev(given) + STD_FLOOR
    return [(s.rewards.get(name, mean) - mean) / deviation for s in sessions]
