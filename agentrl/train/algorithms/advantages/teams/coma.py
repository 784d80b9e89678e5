"""Counterfactual multi-agent policy gradients, with continuations in place of a critic.

Foerster et al., Counterfactual Multi-Agent Policy Gradients (arXiv:1705.08926): agent a's advantage at a joint turn is

    A_a = G - Σ π_a(u) Q(u, u₋a)        G: the return from the joint turn on; u₋a: what the others said

The sum is estimated by `counterfactuals` continuations in which a's turn alone is drawn again
(`agentrl.rollout.episodes.counterfactuals`). None of them is the turn that was taken, so the gradient has no bias, as
with VinePPO's values (arXiv:2410.01679).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from pydantic import PositiveInt

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.credit import Credit, NodeKey, trainable_nodes
from agentrl.train.algorithms.policy_gradient import PolicyGradient, UnclippedConfig
from agentrl.train.algorithms.returns import Found, change_advantages, relative
from agentrl.types import Group, Session
from agentrl.types.session import COUNTERFACTUALS


class ComaConfig(UnclippedConfig):
    """Settings of `coma`."""

    counterfactuals: PositiveInt = 4
    """Continuations for each turn of each agent, in which that turn alone is drawn again."""


class Coma(PolicyGradient):
    """Returns less what the same joint turn comes to with another turn of the agent, by continuations."""

    name = "coma"
    settings = ComaConfig
    about = About(
        "COMA, arXiv:1705.08926",
        "G - mean G of continuations in which the agent's turn alone is drawn again",
        "teams that move at once in environments that can be saved",
    )
    counterfactuals = True
    whole_sessions = True
    config: ComaConfig

    def credit(self, groups: Sequence[Group], values: Mapping[NodeKey, Sequence[float]] | None = None) -> Credit:
        """Compute the credit; turns of which no continuation was rewarded are left out."""
        credit = super().credit(groups)
        turns = [node for group in groups for session in group.scored for node in baselines(session)]
        credit.metrics["coma/turns"] = float(len(turns))
        return credit

    def judge(self, sessions: Sequence[Session]) -> Found:
        returns = relative(sessions, self.config, "none")
        found: Found = {}
        for session in sessions:
            for node, usual in baselines(session).items():
                if (key := (session.id, node)) in returns:
                    found |= change_advantages({key: returns[key]}, lambda value, usual=usual: value - usual)  # type: ignore[misc]
        return found


def baselines(session: Session) -> dict[int, float]:
    """Return the mean return of the continuations of each trained turn of one agent's session, by its node."""
    agent = session.main_agent
    known: Mapping[str, Sequence[float]] = (session.info.get(COUNTERFACTUALS) or {}).get(agent, {})
    said = [n for n in session.nodes if n.agent == agent and n.message.role == "assistant" and n.copy_of is None]
    trained = {node.id for node in trainable_nodes(session)}
    each = ((node.id, known.get(str(place))) for place, node in enumerate(said) if node.id in trained)
    return {node: fmean(returns) for node, returns in each if returns}
