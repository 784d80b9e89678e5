"""PRIME (Cui et al., arXiv:2502.01456): process rewards of a model that learns from outcomes alone, beside the policy.

Both parts are compared with the others of the group (equation 5), and stay undivided:

    A_t = sum over s >= t of gamma^(s - t) (r_s - mean of r of the others)  +  R - mean of R of the others

r is a token's process reward (`agentrl.train.trainers.reward_model`), computed before the model learns from the batch,
as in the paper's algorithm 1; a session's mean is over its trained tokens, and sessions weigh alike. On a session with
several paths a sum is the mean over the paths below a token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from agentrl.config import Fraction
from agentrl.errors import InvalidInput
from agentrl.train.algorithms import gae
from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.base import RewardModelConfig
from agentrl.train.algorithms.credit import Credit, NodeKey, denominators, ids_by_group, weigh
from agentrl.train.algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from agentrl.train.algorithms.returns import Found, by_turn
from agentrl.types import Group, Session

TokenRewards = Mapping[NodeKey, Sequence[float]]
"""The process reward of each of a node's tokens, 0 where it is not trained."""


class PrimeConfig(PolicyGradientConfig, RewardModelConfig):
    """Settings of `prime`."""

    name: str = "prime"
    gamma: Fraction = 1.0
    """Discount factor of process rewards, per token."""


class Prime(PolicyGradient):
    """PRIME. All scored sessions are trained on: where outcomes are equal, process rewards may differ."""

    name = "prime"
    settings = PrimeConfig
    about = About(
        "PRIME, arXiv:2502.01456",
        "Σ over later tokens of (r - mean of the others' r) + R - mean of the others' R; r = β log(π_φ / π_ref), "
        "π_φ learns R from 0 to 1 by cross-entropy",
        "long answers with a reward at their end alone",
        "verl's recipes: prime",
    )
    group_size = 2
    reward_model = True
    whole_sessions = True
    config: PrimeConfig

    def credit(self, groups: Sequence[Group], values: Mapping[NodeKey, Sequence[float]] | None = None) -> Credit:
        """Compute the credit."""
        if values is None:
            raise InvalidInput("algo=prime needs a reward model's process rewards")
        scored = ids_by_group(groups)
        found = {key: each for sessions in scored.values() for key, each in self._judge(sessions, values).items()}
        counts = denominators(scored, found, self.config)
        credit = Credit(weigh(scored, found, self.config), counts=counts)
        sessions = [session for members in scored.values() for session in members]
        errors = {session.id: _error(session, values) for session in sessions}
        for key, shares in credit.shares.items():
            target = errors[key[0]] / (len(sessions) * math.fsum(share.weight for share in shares))
            returns = [target] * len(values[key])
            credit.shares[key] = tuple(replace(share, values=values[key], returns=returns) for share in shares)
        credit.metrics = {"groups/trained": float(sum(map(bool, scored.values())))}
        if sessions:
            credit.metrics["reward_model/error"] = fmean(map(abs, errors.values()))
            credit.metrics["reward_model/accuracy"] = fmean(abs(error) < 0.5 for error in errors.values())
        return credit

    def _judge(self, sessions: Sequence[Session], rewards: TokenRewards) -> Found:
        """One group's advantages, one for each token."""
        means = {s.id: fmean(given) for s in sessions if (given := _list_given(s, rewards))}
        found: dict[NodeKey, list[Sequence[float]]] = {}
        for key, each in by_turn(sessions, "leave-one-out").items():
            found[key] = [a if isinstance(a, Sequence) else [a] * len(rewards[key]) for a in each]
        for session in sessions:
            others = [mean for other, mean in means.items() if other != session.id]
            if others:
                for node, process in self._process(session, rewards, fmean(others)).items():
                    outcomes = found[session.id, node]
                    found[session.id, node] = [[x + y for x, y in zip(a, process, strict=True)] for a in outcomes]
        return {key: [*each] for key, each in found.items()}

    def _process(self, session: Session, rewards: TokenRewards, baseline: float) -> dict[int, list[float]]:
        """The discounted sum of rewards less the baseline from each token on, by trained node."""
        beyond = {node: [r - baseline for r in rewards[session.id, node]] for node in gae.all_steps(session)}
        without_critic = {node: [0.0] * len(each) for node, each in beyond.items()}
        return gae.advantages(session, without_critic, self.config.gamma, 1.0, rewards=beyond)


def _list_given(session: Session, rewards: TokenRewards) -> list[float]:
    """The process rewards of a session's trained tokens."""
    return [rewards[session.id, node][i] for node, places in gae.all_steps(session).items() for i in places]


def _error(session: Session, rewards: TokenRewards) -> float:
    """The outcome less the model's expectation, the sigmoid of the session's summed rewards."""
    outcome = session.score or 0.0
    if not 0 <= outcome <= 1:
        raise InvalidInput(
            f"algo=prime: its reward model learns rewards from 0 to 1, and session {session.id} has {outcome:g}; "
            "change the environment's rewards or their weights, or take another algorithm"
        )
    return outcome - 0.5 * (1 + math.tanh(math.fsum(_list_given(session, rewards)) / 2))
