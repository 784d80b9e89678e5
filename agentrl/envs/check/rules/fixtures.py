"""The rule about answers whose credit is known: an environment's own `fixtures`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import islice

from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.envs.check.scores import TOLERANCE, declared_bounds
from agentrl.envs.check.subject import Subject
from agentrl.envs.episode import ScriptedPolicy, play
from agentrl.envs.fixtures import Fixture, FixtureCredit
from agentrl.errors import AgentRLError
from agentrl.types import Message, Session

MOST = 200
"""Fixtures that are played, at most."""


async def fixtures(subject: Subject) -> AsyncIterator[str]:
    """Answers whose credit is known get it, where the environment ships some."""
    for place, (task, fixture) in enumerate(islice(calls.fixtures(subject.env), MOST)):
        subject.label(task, f"agent of fixture {place}")
        about = f" ({fixture.about})" if fixture.about else ""
        try:
            session = await play(subject.make(), task, saying(fixture.messages), seed=subject.seed)
        except AgentRLError as error:
            yield f"fixture {place}{about}, task {task.id!r}: {error}"
            continue
        if words := problem(fixture, session, subject.env):
            said = fixture.messages[-1].text[:60] if fixture.messages else ""
            yield f"fixture {place}{about}, task {task.id!r}: {said!r} {words}"


def saying(messages: Sequence[Message]) -> ScriptedPolicy:
    """An agent that writes these messages, and then empty ones."""
    left = iter(messages)
    return lambda env, conversation: next(left, Message(role="assistant", content=""))


def problem(fixture: Fixture, session: Session, env: Env) -> str:
    """Describe the fault of a fixture's score; "" where it is right."""
    score, credit = session.score, fixture.credit
    if score is None:
        return "got no reward; where an answer is worth nothing, return 0"
    if not isinstance(credit, FixtureCredit):
        return "" if abs(score - credit) <= TOLERANCE else f"must get {credit:g} and got {score:g}"
    least, most = declared_bounds(env, [session], session.rewards)
    fits = {
        FixtureCredit.FULL: score >= most - TOLERANCE,
        FixtureCredit.PARTIAL: least + TOLERANCE < score < most - TOLERANCE,
        FixtureCredit.NONE: score <= least + TOLERANCE,
    }
    return "" if fits[credit] else f"must get {credit} credit and got {score:g} (of {least:g} to {most:g})"
