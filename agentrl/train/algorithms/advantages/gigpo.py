"""Group-in-group policy optimisation (Feng et al., arXiv:2505.10978): groups of turns within a group of sessions.

A turn's advantage is GRPO's, plus what the turn did better than other turns of the group that began in the same state
(anchor state). The state is what the environment said before the turn, text and all: an environment whose answers don't
show where the agent is has to say so for this to mean anything. With `step_groups=session` the turns of the agent's own
session are compared with each other instead, which needs no state to come back.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import NonNegativeFloat

from agentrl.config import Fraction
from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.advantages.grpo import Grpo, GrpoConfig
from agentrl.train.algorithms.branch_returns import SAME, STD_FLOOR
from agentrl.train.algorithms.credit import NodeKey, trainable_nodes
from agentrl.train.algorithms.returns import Found, change_advantages
from agentrl.types import Node, Session
from agentrl.types.session import outcome, path_weights

State = tuple[str, ...]
"""The environment's messages between a turn and the turn before it."""


class GigpoConfig(GrpoConfig):
    """Settings of `gigpo`."""

    step_gamma: Fraction = 0.95
    """Discount of a turn's rewards with every turn between."""
    step_weight: NonNegativeFloat = 1.0
    """Weight of the advantage over those turns."""
    step_groups: Literal["state", "session"] = "state"
    """The turns that a turn is compared with: those of the group that were shown the same, or the agent's in its own
    session; there `step_gamma=0` compares what each turn was rewarded with, the last one with the session's reward."""


class Gigpo(Grpo):
    """GiGPO; `scale_by_std` divides both parts by their standard deviations."""

    name = "gigpo"
    settings = GigpoConfig
    about = About(
        "GiGPO, arXiv:2505.10978",
        "A of grpo + w (G - mean) / (std + 1e-4) over the group's turns in the same state, or the session's own, G: "
        "discounted return",
        "long episodes that often come back to the same states",
        "verl-agent: gigpo",
    )
    config: GigpoConfig

    def judge(self, sessions: Sequence[Session]) -> Found:
        steps = self._steps(sessions)
        found: Found = {}
        for key, each in super().judge(sessions).items():
            step = self.config.step_weight * steps.get(key, 0.0)
            found |= change_advantages({key: each}, lambda a, step=step: a + step)  # type: ignore[misc]
        return found

    def _steps(self, sessions: Sequence[Session]) -> dict[NodeKey, float]:
        """The advantage of each turn over the others in the same state; none where it is the only one."""
        states: dict[State, dict[NodeKey, list[tuple[float, float]]]] = {}
        for session in sessions:
            for node, state, value, weight in step_returns(session, self.config.step_gamma):
                shown = state if self.config.step_groups == "state" else (session.id,)
                states.setdefault(shown, {}).setdefault((session.id, node), []).append((value, weight))
        found: dict[NodeKey, float] = {}
        for members in states.values():
            values = {key: _mean(each) for key, each in members.items()}
            if len(values) < 2 or max(values.values()) - min(values.values()) < SAME:
                continue
            mean = math.fsum(values.values()) / len(values)
            scale = statistics.stdev(values.values()) + STD_FLOOR if self.config.scale_by_std else 1.0
            found |= {key: (value - mean) / scale for key, value in values.items()}
        return found


def step_returns(session: Session, gamma: float) -> Iterator[tuple[int, State, float, float]]:
    """Yield for each path and each of its trainable turns: the turn, its state, discounted return, and path weight.

    Returns are discounted turn by turn. A path of a forked session weighs what it is of the session, any other 1.
    """
    trainable = {node.id for node in trainable_nodes(session)}
    weights = path_weights(session) if session.branches else None
    for path in session.stored_paths():
        weight = 1.0 if weights is None else weights.get(path[-1].id, 0.0)
        if not weight:
            continue
        value, found = outcome(session, path[-1].id), []
        for place in reversed(range(len(path))):
            node = session.original(path[place])
            value += node.reward or 0.0
            if node.id in trainable:
                found.append((node.id, _state(path[:place]), value, weight))
                value *= gamma
        yield from reversed(found)


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    return math.fsum(w * value for value, w in weighted) / math.fsum(w for _, w in weighted)


def _state(before: Sequence[Node]) -> State:
    """The messages since the newest turn."""
    said: list[str] = []
    for node in reversed(before):
        if node.sampled or node.copy_of is not None:
            break
        said.append(f"{node.message.role}: {node.message.text}")
    return tuple(reversed(said))
