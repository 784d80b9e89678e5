"""Proximal policy optimisation with a critic (Schulman et al., arXiv:1707.06347).

The critic is a linear head on the policy's own trunk, or on a copy of it; its estimates for every token's state come
as `values`. Advantages are estimated along the session's paths (see `agentrl.train.algorithms.gae`), and a value's
target is the advantage plus the value.
No group is needed: a session is compared with what the critic expected, not with its siblings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from agentrl.errors import InvalidInput
from agentrl.train.algorithms import gae
from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.adaptive import Moments
from agentrl.train.algorithms.advantages.grpo import Grpo, GrpoConfig
from agentrl.train.algorithms.base import CriticConfig
from agentrl.train.algorithms.credit import Advantage, Credit, NodeAdvantage, NodeKey, denominators, ids_by_group, weigh
from agentrl.train.algorithms.values import mean_return
from agentrl.types import Group

FLOOR = 1e-8
"""Added to the standard deviation of advantages, as PPO's implementations do."""

SAME = 1e-6
"""Returns whose standard deviation is below this differ by rounding only: there is nothing to explain."""


class PpoConfig(GrpoConfig, CriticConfig):
    """Settings of `ppo`."""

    name: str = "ppo"
    scale_by_std: bool = True
    """Centre a batch's advantages, and divide them by their standard deviation."""


class Ppo(Grpo):
    """PPO, with the loss of `Grpo`."""

    name = "ppo"
    settings = PpoConfig
    about = About(
        "PPO, arXiv:1707.06347; GAE, arXiv:1506.02438",
        "generalised advantage estimation with a critic, token by token, standardised over the batch",
        "long episodes; groups of one",
        "TRL: PPOTrainer; verl: gae",
    )
    group_size = 1
    critic = True
    config: PpoConfig

    def credit(self, groups: Sequence[Group], values: Mapping[NodeKey, Sequence[float]] | None = None) -> Credit:
        """Advantages per token, centred and scaled over the batch unless configured otherwise; the critic's targets."""
        if values is None:
            raise InvalidInput("algo=ppo needs a critic's values")
        config = self.config
        scored = ids_by_group(groups)
        said, values = values, self._values(groups, values) if config.normalize_returns else values
        found: dict[NodeKey, list[float]] = {}
        places: dict[NodeKey, list[int]] = {}
        for session in (session for sessions in scored.values() for session in sessions):
            steps = gae.all_steps(session)
            own = {node: values[session.id, node] for node in steps}
            for node, advantages in gae.advantages(
                session, own, config.gamma, config.gae_lambda, config.gae_step
            ).items():
                found[session.id, node] = advantages
                places[session.id, node] = steps[node]
        each: dict[NodeKey, Sequence[Advantage]] = {key: (advantages,) for key, advantages in found.items()}
        shares = {key: share for key, (share,) in weigh(scored, each, config).items()}

        def spread(of: Mapping[NodeKey, Sequence[float]]) -> tuple[float, float]:
            return moments((shares[key].weight, of[key][i]) for key in shares for i in places[key])

        before = {key: self._before(values[key], places[key]) for key in shares}
        returns = {key: [a + v for a, v in zip(found[key], before[key], strict=True)] for key in shares}
        mean, deviation = spread(found)
        expected = spread(returns)
        credit = Credit(metrics={"groups/trained": float(sum(map(bool, scored.values())))})
        credit.counts = denominators(scored, each, config)
        credit.metrics |= {"critic/value_mean": spread(values)[0], "critic/return_mean": expected[0]}
        credit.metrics["critic/advantage_std"] = deviation
        if expected[1] > SAME:
            credit.metrics["critic/explained_variance"] = 1 - (deviation / expected[1]) ** 2
        targets = self._normalise(returns, shares, places) if config.normalize_returns else returns
        for key, share in shares.items():
            advantages = found[key]
            if config.scale_by_std:
                advantages = [(a - mean) / (deviation + FLOOR) for a in advantages]
            credit.shares[key] = (replace(share, advantage=advantages, values=said[key], returns=targets[key]),)
        return credit

    def _before(self, values: Sequence[float], places: Sequence[int]) -> Sequence[float]:
        """The value of the state before each token's step, for a node's tokens."""
        return values if self.config.gae_step == "token" else [values[places[0]]] * len(values)

    def _values(
        self, groups: Sequence[Group], normalised: Mapping[NodeKey, Sequence[float]]
    ) -> dict[NodeKey, list[float]]:
        """Values from what the critic says, by the moments that it learned under; it begins at the mean return."""
        learned = self.adaptive.returns
        mean, scale = (learned.mean, _scale(learned)) if learned.weight else (mean_return(groups, self.config), 1.0)
        return {key: [mean + scale * value for value in each] for key, each in normalised.items()}

    def _normalise(
        self,
        returns: Mapping[NodeKey, Sequence[float]],
        shares: Mapping[NodeKey, NodeAdvantage],
        places: Mapping[NodeKey, Sequence[int]],
    ) -> dict[NodeKey, list[float]]:
        """The critic's targets, by the running moments of returns, this batch's included."""
        running = self.adaptive.returns
        running.add((shares[key].weight, returns[key][i]) for key in shares for i in places[key])
        return {key: [(value - running.mean) / _scale(running) for value in each] for key, each in returns.items()}


def _scale(moments: Moments) -> float:
    return moments.deviation if moments.deviation > SAME else 1.0


def moments(weighted: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Mean and standard deviation of (weight, number) pairs; zeros where there are none."""
    pairs = list(weighted)
    total = math.fsum(weight for weight, _ in pairs)
    if not total:
        return 0.0, 0.0
    mean = math.fsum(weight * x for weight, x in pairs) / total
    return mean, math.sqrt(math.fsum(weight * (x - mean) ** 2 for weight, x in pairs) / total)
