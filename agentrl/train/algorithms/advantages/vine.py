"""VinePPO: a turn's advantage is how much the value of the state rose, by continuations from before and after it.

Kazemnejad et al., VinePPO (arXiv:2410.01679): where an episode can be continued again from any state, the mean return
of a few continuations estimates the state's value without a bias, where a critic's estimate is poor. Between two states
s and s' with estimates

    advantage = step rewards from s to s' + V(s') - V(s)         V behind the end: what the final reward adds

is that of every turn between them (as in the paper, with turns as steps). The session's own path is not part of the
estimates, so a baseline does not depend on the action that it judges. The other sessions of the group are continuations
from the first state. `rollout.branch` makes the continuations, and says at which turns. They are not trained on unless
`rollout.branch.trained` is set; then a continuation's turns are compared with the other estimates of its state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, pstdev

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.advantages.grpo import Grpo, GrpoConfig
from agentrl.train.algorithms.branch_returns import STD_FLOOR, WeightedPath, paths_of
from agentrl.train.algorithms.credit import Advantage, Credit, NodeKey, denominators, ids_by_group, weigh
from agentrl.types import Group, Session
from agentrl.types.branches import list_untrained
from agentrl.types.session import branch_of


class VineConfig(GrpoConfig):
    """Settings of `vine`."""

    name: str = "vine"
    scale_by_std: bool = False
    """Divide a batch's advantages by their standard deviation."""


class Vine(Grpo):
    """VinePPO, with the loss of `Grpo`."""

    name = "vine"
    settings = VineConfig
    about = About(
        "VinePPO, arXiv:2410.01679",
        "step rewards from s to s' + V(s') - V(s), V by continuations from a state",
        "long episodes of environments that can be forked",
        "",
    )
    group_size = 1  # enough where turn 0 is forked
    branches = True
    config: VineConfig

    def credit(self, groups: Sequence[Group], values: Mapping[NodeKey, Sequence[float]] | None = None) -> Credit:
        scored = ids_by_group(groups)
        found: dict[NodeKey, float] = {}
        estimates = 0
        for members in scored.values():
            for session in members:
                others = [score for other in members if other is not session and (score := other.score) is not None]
                values_of = state_values(session)
                estimates += len(values_of)
                found |= {(session.id, turn): value for turn, value in _advantages(session, values_of, others).items()}
        factor = 1 / (pstdev(found.values()) + STD_FLOOR) if self.config.scale_by_std and found else 1.0
        each: dict[NodeKey, Sequence[Advantage]] = {key: (factor * value,) for key, value in found.items()}
        credit = Credit(weigh(scored, each, self.config), counts=denominators(scored, each, self.config))
        credit.metrics = {
            "groups/trained": float(sum(map(bool, scored.values()))),
            "vine/estimates": float(estimates),
            "vine/advantage_std": pstdev(found.values()) if found else 0.0,
        }
        return credit


def state_values(session: Session) -> dict[int, list[tuple[int, float]]]:
    """Return each continuation's first turn, and its return, by the node before the turn."""
    starts = {branch.start for branch in session.branches if branch.head is not None}
    found: dict[int, dict[int, list[tuple[float, float]]]] = {}
    for path in paths_of(session):
        for turn, value in zip(path.turns, path.returns, strict=True):
            head = session.nodes[turn].parent
            if turn in starts and head is not None:
                found.setdefault(head, {}).setdefault(turn, []).append((path.weight, value))
    return {head: [(turn, _mean(each)) for turn, each in by_turn.items()] for head, by_turn in found.items()}


def _advantages(
    session: Session, values: Mapping[int, Sequence[tuple[int, float]]], others: Sequence[float]
) -> dict[int, float]:
    left_out = list_untrained(session)
    judged: dict[int, list[tuple[float, float]]] = {}
    for path in paths_of(session):
        for turn, advantage in _of_path(session, path, values, others).items():
            if turn not in left_out:
                judged.setdefault(turn, []).append((path.weight, advantage))
    return {turn: _mean(each) for turn, each in judged.items()}


def _of_path(
    session: Session, path: WeightedPath, values: Mapping[int, Sequence[tuple[int, float]]], others: Sequence[float]
) -> dict[int, float]:
    """The advantages of the turns of a path's own branch; 0 before the first state with an estimate."""

    def estimate(place: int) -> float | None:
        """The value of the state before a turn, by continuations that are not the path itself."""
        head = session.nodes[path.turns[place]].parent
        known = [value for turn, value in values.get(-1 if head is None else head, ()) if turn not in path.turns]
        if not place:
            known += others
        return fmean(known) if known else None

    known = [(place, value) for place in range(len(path.turns)) if (value := estimate(place)) is not None]
    branch = branch_of(session, path.turns[-1]) if path.turns else None
    own = [turn for turn in path.turns if branch_of(session, turn) is branch]
    found = dict.fromkeys(own, 0.0)
    states = [*known, (len(path.turns), path.final)]
    for (place, value), (after, next_value) in pairwise(states):
        rest = path.returns[after] if after < len(path.turns) else path.final
        advantage = path.returns[place] - rest + next_value - value
        found |= dict.fromkeys(set(path.turns[place:after]) & set(own), advantage)
    return found


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    return math.fsum(w * value for w, value in weighted) / math.fsum(w for w, _ in weighted)
