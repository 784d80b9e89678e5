"""ReMax (Li et al., arXiv:2310.10505): REINFORCE with what the greedy session of the same task earned as baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.base import Choice
from agentrl.train.algorithms.credit import Credit, NodeKey
from agentrl.train.algorithms.policy_gradient import PolicyGradient, UnclippedConfig
from agentrl.train.algorithms.returns import Found, Rows, by_turn, credit_of, means, sampled_returns
from agentrl.types import Group, Session


class Remax(PolicyGradient):
    """A turn's return less the greedy session's return at the same turn (algorithm 1, whose sessions have one turn).

    A group whose greedy session has no reward is dropped.
    """

    name = "remax"
    settings = UnclippedConfig
    about = About(
        "ReMax, arXiv:2310.10505",
        "R - R of a session at temperature 0, which is generated beside each group and not trained",
        "groups of one without a critic; policies that are nearly deterministic",
        "verl: remax",
    )
    greedy = True
    whole_sessions = True

    def select(self, group: Group) -> Choice:
        return Choice.KEEP if group.greedy else Choice.DROP

    def credit(self, groups: Sequence[Group], values: Mapping[NodeKey, Sequence[float]] | None = None) -> Credit:
        beside: dict[str, list[Session]] = {}
        for group in groups:
            beside.setdefault(group.id, []).extend(group.greedy)
        greedy = {session.id: beside[group.id] for group in groups for session in group.scored}

        def judge(sessions: Sequence[Session]) -> Found:
            baselines = greedy[sessions[0].id] if sessions else []

            def baseline(returns: Sequence[Rows]) -> list[list[float]]:
                turns = len(returns[0][0])
                return [means([sampled_returns(session, turns) for session in baselines])] * len(returns)

            return by_turn(sessions, baseline) if baselines else {}

        credit = credit_of(groups, self.config, judge)
        found = [session.score or 0.0 for sessions in beside.values() for session in sessions]
        return credit if not found else replace(credit, metrics=credit.metrics | {"reward/greedy": fmean(found)})
