"""REINFORCE with a baseline that needs no group (Williams, 1992): none, a constant, a moving mean, or the batch's."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from agentrl.config import AlgoConfig, Fraction
from agentrl.train.algorithms import returns
from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.credit import Credit, NodeKey
from agentrl.train.algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig, UnclippedConfig
from agentrl.types import Group, Session


class ReinforceConfig(UnclippedConfig):
    """Settings of `reinforce`."""

    only_with: ClassVar[Mapping[str, str]] = {
        "baseline_value": "baseline=constant",
        "baseline_decay": "baseline=moving",
    }
    baseline: Literal["none", "constant", "moving", "batch"] = "none"
    """The baseline that is taken from each return: nothing, `baseline_value`, the moving mean of the scores of earlier
    steps, or the mean over all sessions of the step at the same turn."""
    baseline_value: float = 0.0
    """The constant baseline."""
    baseline_decay: Fraction = 0.9
    """The share that the moving mean keeps of itself at each step; it begins at the first step's mean."""


class Reinforce(PolicyGradient):
    """The REINFORCE algorithm."""

    name = "reinforce"
    settings = ReinforceConfig
    about = About(
        "REINFORCE, Williams 1992",
        "R - baseline: 0, a constant, a moving mean, or the batch's mean",
        "groups of one",
        "",
    )
    config: ReinforceConfig

    def __init__(self, config: AlgoConfig | None = None) -> None:
        super().__init__(config)
        self.moving: float | None = None

    def credit(self, groups: Sequence[Group], values: Mapping[NodeKey, Sequence[float]] | None = None) -> Credit:
        """The final reward plus the step rewards to come, less the baseline."""
        match self.config.baseline:
            case "none":
                return returns.group_relative(groups, self.config, baseline="none")
            case "constant":
                return self._less(groups, self.config.baseline_value)
            case "moving":
                return self._less(groups, self._moving(groups))
            case "batch":
                return batch_relative(groups, self.config)

    def _less(self, groups: Sequence[Group], baseline: float) -> Credit:
        def judge(sessions: Sequence[Session]) -> returns.Found:
            return returns.relative_to(sessions, self.config, [baseline] * len(sessions))

        credit = returns.credit_of(groups, self.config, judge)
        credit.metrics["policy/baseline"] = baseline
        return credit

    def _moving(self, groups: Sequence[Group]) -> float:
        """The baseline before this step, which is then moved towards the step's mean score."""
        found = [score for group in groups for score in returns.scores(group.scored)]
        mean = statistics.fmean(found) if found else 0.0
        baseline = mean if self.moving is None else self.moving
        if found:
            self.moving = baseline + (1 - self.config.baseline_decay) * (mean - baseline)
        return baseline

    def state(self) -> dict[str, Any]:
        return {} if self.moving is None else {"moving": self.moving}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.moving = state.get("moving")


def batch_relative(groups: Sequence[Group], config: PolicyGradientConfig) -> Credit:
    """Returns less their mean over all sessions of the step at the same turn; below a fork, over the siblings there."""
    found = returns.relative([session for group in groups for session in group.scored], config, "mean")
    return returns.credit_of(groups, config, lambda sessions: returns.of_sessions(found, sessions))
