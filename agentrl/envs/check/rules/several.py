"""Rules about several agents: what one is told of another, who plays beside a silent one, moves at once."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from agentrl.envs.base import Env
from agentrl.envs.check import trivial
from agentrl.envs.check.subject import EXPERT, Episode, Subject
from agentrl.envs.check.trivial import Seated
from agentrl.envs.data.samples import random_policy
from agentrl.envs.episode import ScriptedPolicy, expert_policy, noop_policy, play
from agentrl.errors import AgentRLError
from agentrl.types import Session

FEWEST, PLAYED = 3, 12
"""Tasks that are compared, at least and at most."""
SURE = 0.95
"""The share of the tasks in which a value must be told."""
BEFORE = 3
"""Words before a value that name it."""
SECRET = re.compile(r"secret|hidden|private|only you|nobody|never (say|tell)|do(n't| not) (say|tell|reveal|show)", re.I)
_WORD = re.compile(r"[\w'-]+")


async def hidden(subject: Subject) -> AsyncIterator[str]:
    """No agent is told what only another may know."""
    played = _of_several(subject)
    if len(played) < FEWEST:
        return
    heard = {agent: [_list_heard(session, agent) for _, session in played] for agent in subject.env.agents}
    for one in subject.env.agents:
        for other in subject.env.agents:
            if one != other and (found := _leak(heard[one], heard[other])):
                label, value, place = found
                yield (
                    f"{other!r} is told what only {one!r} may know: {label!r} {value!r} of {one!r} "
                    f"in task {played[place][0].task.id!r}, and so in all tasks"
                )


async def silent_partner(subject: Subject) -> AsyncIterator[str]:
    """An agent beside silent ones is rewarded, with no less than they get."""
    env = subject.env
    if len(env.agents) < 2 or not subject.expert:
        return
    for agent in env.agents:
        own, others, missing = [], [], ""
        for task in subject.scored[:PLAYED]:
            actor = Seated(noop_policy, agent, expert_policy)
            subject.label(task, f"expert as {agent} beside silent ones")
            try:
                session = await play(subject.make(), task, actor, seed=subject.seed, max_turns=subject.limit)
            except AgentRLError as error:
                yield f"task {task.id!r}, the expert as {agent!r} beside silent agents: {error}"
                return
            if (
                session.agent_rewards.get(agent) is None
                and not _has_stepped(session, agent)
                and _is_rewarded(subject, agent)
            ):
                missing = missing or task.id
            own.append(trivial.score(session, agent))
            others += [trivial.score(session, each) for each in env.agents if each != agent]
        if missing:
            yield f"task {missing!r}: {agent!r} gets no reward where the other agents say nothing: they escape losing"
        elif len(own) >= FEWEST and fmean(own) < fmean(others) - 1e-6:
            words = f"{fmean(own):.2f}, and the silent ones {fmean(others):.2f}"
            yield f"the expert as {agent!r} beside silent agents gets {words}: who says nothing gains by it"


async def order(subject: Subject) -> AsyncIterator[str]:
    """Moves at once have the same results in whatever order they are answered."""
    env = subject.env
    if len(env.agents) < 2 or not env.simultaneous or "not deterministic" in subject.notes:
        return
    policies: Sequence[ScriptedPolicy] = [*([expert_policy] if subject.expert else []), random_policy(subject.seed)]
    for task in subject.scored[:PLAYED] or subject.tasks:
        for policy in policies:
            subject.label(task, "agents whose moves are answered in another order")
            one, other = [await _scores(subject, task, policy, reverse=reverse) for reverse in (False, True)]
            if one != other:
                words = f"{one}, and {other} where they are answered in reverse"
                yield f"task {task.id!r}: agents that move at once get {words}"
                return


async def _scores(subject: Subject, task: Any, policy: ScriptedPolicy, *, reverse: bool) -> Mapping[str, float]:
    env = subject.make()
    if reverse:
        _reverse(env.unwrapped)
    session = await play(env, task.model_copy(deep=True), policy, seed=subject.seed, max_turns=subject.limit)
    return {agent: round(trivial.score(session, agent), 6) for agent in env.agents}


def _reverse(env: Env) -> None:
    """Let the agents' openings, whose order is that of the answers, come in reverse."""
    reset = env.reset

    async def reversed_reset(task: Any, *, seed: int | None = None) -> Any:
        given = reset(task, seed=seed)
        openings: Any = await given if hasattr(given, "__await__") else given
        return dict(reversed(list(openings.items())))

    env.reset = reversed_reset  # type: ignore[method-assign]


def _of_several(subject: Subject) -> list[tuple[Episode, Session]]:
    if len(subject.env.agents) < 2:
        return []
    return subject.played_by(subject.default)


def _list_heard(session: Session, agent: str) -> list[str]:
    """The words that an agent is told before its first message."""
    words: list[str] = []
    for node in session.nodes:
        if node.agent == agent:
            if node.message.role == "assistant":
                break
            words += _WORD.findall(node.message.text.casefold())
    return words


def _leak(one: Sequence[Sequence[str]], other: Sequence[Sequence[str]]) -> tuple[str, str, int] | None:
    """A value that only one agent may know and the other is told: what names it, the value, and in which task.

    It is one's own where both have a value of that name and theirs differ, or where its name says so.
    """
    common = set.intersection(*map(set, other))
    mine, theirs = _find_named(one), _find_named(other)
    for label, values in mine.items():
        if len(set(values)) < 2 or len(values) < len(one):
            continue
        private = label in theirs and any(a != b for a, b in zip(values, theirs[label], strict=False))
        if not private and not SECRET.search(label):
            continue
        told = [
            value in _rest(words, label) and value not in common for value, words in zip(values, other, strict=True)
        ]
        different = {value for value, is_told in zip(values, told, strict=True) if is_told}
        if sum(told) >= SURE * len(told) and len(different) > 1:
            place = told.index(True)
            return label, values[place], place
    return None


def _find_named(texts: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    """The words behind the same three words in every text, by those."""
    found: dict[str, list[str]] = {}
    labels = set.intersection(
        *({" ".join(text[at : at + BEFORE]) for at in range(len(text) - BEFORE)} for text in texts)
    )
    for label in labels:
        found[label] = [_behind(text, label) for text in texts]
    return found


def _behind(text: Sequence[str], label: str) -> str:
    for at in range(len(text) - BEFORE):
        if " ".join(text[at : at + BEFORE]) == label:
            return text[at + BEFORE]
    return ""


def _rest(words: Sequence[str], label: str) -> set[str]:
    """The words of a text without the one behind a label."""
    for at in range(len(words) - BEFORE):
        if " ".join(words[at : at + BEFORE]) == label:
            return {*words[: at + BEFORE], *words[at + BEFORE + 1 :]}
    return set(words)


def _has_stepped(session: Session, agent: str) -> bool:
    return any(node.reward is not None for node in session.nodes if node.agent == agent)


def _is_rewarded(subject: Subject, agent: str) -> bool:
    """Return whether the agent is rewarded at all: one that plays a customer, say, is not."""
    return any(
        session.agent_rewards.get(agent) is not None for episode, session in subject.played() if episode.agent == EXPERT
    )
