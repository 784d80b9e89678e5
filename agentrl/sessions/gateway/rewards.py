"""A session's end and its rewards.

A session is closed, then sealed. Closing stops the conversation: requests in progress are aborted, later ones are
rejected. Rewards may be given before, with, or after the close. A final reward completes a closed session, which is
then sealed; rewards by name or for a turn leave it open for more until `reward_deadline` has passed. A sealed
session is written and never changes again. One without any reward keeps `reward = None`: it is not trained on,
and that is not a reward of 0. A reward that repeats an earlier one is a retry; another value is rejected.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from agentrl.common.plain import number
from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.gateway.session_state import SessionState
from agentrl.types import RewardState, Status

Number = Annotated[float, BeforeValidator(number)]
"""A reward, by the rule that holds for those of environments too."""


class RewardBody(BaseModel):
    """A reward: final, or by `name`, or for one `turn` (a reply's id, or a node's number)."""

    model_config = ConfigDict(extra="forbid")
    value: Number
    name: str | None = Field(default=None, min_length=1, max_length=200)
    turn: str | int | None = None


class CloseBody(BaseModel):
    """The body of a request that ends a session: its status, and possibly rewards."""

    model_config = ConfigDict(extra="forbid")
    reward: Number | None = None
    rewards: dict[str, Number] = {}
    status: Status = Status.COMPLETED
    error: str | None = None


class OpenBody(BaseModel):
    """A new session; every field is optional."""

    model_config = ConfigDict(extra="forbid")
    task: dict[str, Any] = {}
    group: str = ""
    sample: int = Field(default=0, ge=0, lt=2**31)
    seed: int = Field(default=0, ge=0, lt=2**63)


def add_reward(state: SessionState, body: RewardBody) -> bool:
    """Record a reward; returns whether it is the final one.

    Raises:
        ApiError: the turn is unknown, or another value was given before.
    """
    session = state.session
    if body.turn is not None:
        if body.name is not None:
            raise ApiError(400, "a reward is for one turn or by name, not both", param="name")
        node = state.find_turn(body.turn)
        _check_same(node.reward, body.value, f"turn {body.turn!r}")
        node.reward = body.value
        return False
    if body.name is not None:
        _check_same(session.rewards.get(body.name), body.value, f"reward {body.name!r}")
        session.rewards[body.name] = body.value
        if session.reward_state is RewardState.PENDING:
            session.reward = math.fsum(session.rewards.values())
        return False
    final = session.reward_state is RewardState.FINAL
    _check_same(session.reward if final else None, body.value, "the final reward")
    session.reward = body.value
    session.reward_state = RewardState.FINAL
    return True


def _check_same(old: float | None, new: float, what: str) -> None:
    if old is not None and old != new:
        raise ApiError(400, f"{what} was given already: {old:g}, and now {new:g}", "already_rewarded", "value")


def end(state: SessionState, body: CloseBody) -> bool:
    """Close the session as `body` says; returns whether it is complete, so that it can be sealed.

    Raises:
        ApiError: the status is not an end, or another value was given before.
    """
    if body.status is Status.OPEN:
        raise ApiError(400, "status='open' is not an end", param="status")
    session = state.session
    for name, value in body.rewards.items():
        add_reward(state, RewardBody(value=value, name=name))
    final = body.reward is not None and add_reward(state, RewardBody(value=body.reward))
    if session.status is Status.OPEN:
        truncated = body.status is Status.COMPLETED and state.truncated
        session.status, session.error = Status.TRUNCATED if truncated else body.status, body.error
        if state.broken is not None:
            session.status, session.error = Status.INFRA_ERROR, state.broken
    return bool(final or body.rewards or session.reward_state is RewardState.FINAL)
