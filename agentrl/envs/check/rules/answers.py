"""Rules about the answer: where an agent could read it.

A coincidence (a choice among options, a small number) does not count: at least `LEAKED` tasks with different answers
must show the same fault, and a text that holds every task's answer tells none of them.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.envs.check.subject import EXPERT, Episode, Subject
from agentrl.envs.data.samples import sample
from agentrl.envs.episode import play
from agentrl.errors import AgentRLError
from agentrl.types import FunctionCall, Message, Task, ToolCall, parse_arguments

ANSWERING = re.compile(r"(final_?)?(answer|solution|result)|submit|finish", re.IGNORECASE)
"""Tools and arguments by which an agent gives its answer."""
ANSWER_KEY = re.compile(r"answer|solution|result|label|target|expected|gold|reference|correct", re.IGNORECASE)
"""Keys of a task's data that hold what the agent is to find."""
BEFORE = 12
"""Characters before an answer that identify its position in a prompt."""
NEAR = 24
"""Characters between a value of a task's data and an answer that are read as a table of answers."""
LEAKED = 3
"""Tasks that must show the fault, at least."""
COMPARED = 4 * LEAKED
"""Tasks that are looked at, at most."""
SECONDS = 5.0
"""No further tasks are looked at after so long."""


@dataclass(frozen=True)
class Solved:
    """A task that the expert solved.

    Attributes:
        episode: the expert's.
        answer: the answer in that message; "" where none can be told from the rest.
        score: what it got.
    """

    task: Task
    episode: Episode
    last: Message
    answer: str
    score: float


async def in_prompt(subject: Subject) -> AsyncIterator[str]:
    """The prompt does not contain the answer.

    Copying it from there does not get the expert's reward.

    The answers must be at the same position of each prompt, and not be part of what comes from the task's own data.
    """
    places = set[str]()
    solved = []
    async for one in _solve(subject):
        place = _position(one)
        if place is None or not await _enough(subject, one, one.last):
            return
        places.add(place)
        solved.append(one)
        if len(places) > 1:
            return
    if _differ(solved):
        where = f"behind {places.pop()!r}"
        yield f"the prompt contains the answer, {where}: copying it gets what the expert gets ({len(solved)} tasks)"


async def in_tools(subject: Subject) -> AsyncIterator[str]:
    """No tool's description or default tells an episode's answer."""
    solved, texts = [], []
    async for one in _solve(subject):
        try:
            text = await _tools_of(subject, one.task)
        except AgentRLError:  # which `failures` reports
            return
        solved.append(one)
        texts.append(text)
    told = _list_told(solved, texts)
    if _differ(told):
        yield f"the tools' schemas tell the answer of task {told[0].task.id!r} ({len(told)} of {len(solved)} tasks)"


async def in_replies(subject: Subject) -> AsyncIterator[str]:
    """Errors and replies to a wrong answer do not tell the right one."""
    solved = [one async for one in _solve(subject)]
    if not _differ(solved):
        return
    replies = []
    for place, one in enumerate(solved):
        wrong = next((other for other in solved[place:] + solved[:place] if other.answer != one.answer), None)
        try:
            replies.append("" if wrong is None else await _replies(subject, one, wrong))
        except AgentRLError:  # which `bad_calls` and `failures` report
            return
    told = _list_told(solved, replies)
    if _differ(told):
        shown = replies[solved.index(told[0])]
        yield (
            f"task {told[0].task.id!r}: what an agent is told after wrong calls and a wrong answer tells the right one "
            f"({len(told)} of {len(solved)} tasks), as in {_around(shown, told[0].answer)!r}"
        )


# ------------------------------------------------------------------------------------------------ the expert's answers


async def _solve(subject: Subject) -> AsyncIterator[Solved]:
    """Tasks with the expert's answers, up to one that it fails or has no answer to."""
    if not subject.expert or len(subject.env.agents) > 1:
        return
    tasks = [*subject.tasks, *(task for listed, _ in subject.splits.values() for task in listed)]
    began = time.monotonic()
    for task in islice({task.id: task for task in tasks}.values(), COMPARED):
        if time.monotonic() - began > SECONDS:
            return
        episode = await subject.episode(task, EXPERT)
        if episode.session is None or episode.session.score is None:
            return
        last, answer = _final(episode)
        if last is None or not answer:
            return
        yield Solved(task, episode, last, answer, episode.session.score)


def _final(episode: Episode) -> tuple[Message | None, str]:
    """The expert's last message, and the answer in it ("" where there is none)."""
    said = [message for message in episode.session.messages if message.role == "assistant"] if episode.session else []
    if not said:
        return None, ""
    last = said[-1]
    if not last.tool_calls:
        return last, last.text.strip()
    call = last.tool_calls[-1]
    for key, value in parse_arguments(call).items():
        if ANSWERING.fullmatch(key) or ANSWERING.fullmatch(call.function.name):
            return last, str(value).strip()
    return last, ""


def _differ(solved: Sequence[Solved]) -> bool:
    """Return whether there are enough tasks, with more than one answer."""
    return len(solved) >= LEAKED and len({one.answer for one in solved}) > 1


async def _enough(subject: Subject, one: Solved, message: Message) -> bool:
    """Return whether this message as the first one gets the expert's reward."""
    session = await play(subject.make(), one.task, lambda env, messages: message, seed=subject.seed, max_turns=1)
    return session.score is not None and session.score >= one.score


# ------------------------------------------------------------------------------------------------ what a text tells


def _position(one: Solved) -> str | None:
    """The characters before the answer in the prompt, outside of the task's data; None: it is not there."""
    prompt = "\n".join(message.text for message in one.episode.opening)
    for value in sorted(_values(one.task.data), key=len, reverse=True):
        prompt = re.sub(_whole(value), "\0", prompt)
    found = list(re.finditer(_whole(one.answer), prompt))
    return prompt[max(0, found[-1].start() - BEFORE) : found[-1].start()] if found else None


def _list_told(solved: Sequence[Solved], texts: Sequence[str]) -> list[Solved]:
    """The tasks whose text has their own answer and no other task's, or has it behind a value of their data."""
    found = []
    for one, text in zip(solved, texts, strict=True):
        others = {other.answer for other in solved} - {one.answer}
        known = "\n".join([*_values(one.task.data), *(message.text for message in one.episode.opening)])
        if not re.search(_whole(one.answer), text) or re.search(_whole(one.answer), known):
            continue
        alone = not any(re.search(_whole(answer), text) for answer in others)
        if alone or any(_answers_at(text, value) == one.answer for value in _values(one.task.data)):
            found.append(one)
    return found


def _answers_at(text: str, value: str) -> str | None:
    """The first word behind a value of a task's data in a text, where it is near: a row of a table of answers."""
    found = re.search(rf"{_whole(value)}\W{{1,3}}(?:\w{{1,8}}\W{{1,3}}){{0,2}}?(\w+)(?=\W*(?:[,;.\n]|$))", text)
    return found[1] if found and len(found[0]) <= len(value) + NEAR else None


def _whole(text: str) -> str:
    return rf"(?<!\w){re.escape(text)}(?!\w)"


def _values(data: Any, key: str = "") -> Iterator[str]:
    """The values of a task's data, except under keys that name the answer."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield from _values(value, str(name))
    elif isinstance(data, (list, tuple)):
        for value in data:
            yield from _values(value, key)
    elif data is not None and str(data).strip() and not ANSWER_KEY.search(key):
        yield str(data).strip()


async def _tools_of(subject: Subject, task: Task) -> str:
    """The descriptions and defaults in the schemas that the model gets in an episode of a task."""
    env = subject.make()
    try:
        await calls.openings(env, task, seed=subject.seed)
        return "\n".join(_prose(env.tools.schemas()))
    finally:
        await calls.close(env)


def _prose(schema: Any) -> Iterator[str]:
    """The texts of a schema that are no names or choices."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key in ("description", "default", "examples") and not isinstance(value, dict):
                yield str(value)
            else:
                yield from _prose(value)
    elif isinstance(schema, list):
        for each in schema:
            yield from _prose(each)


async def _replies(subject: Subject, one: Solved, wrong: Solved) -> str:
    """The errors of calls with made-up arguments, and what follows on another task's answer."""
    made_up = await _answers_to(subject, one.task, list(_wrong_calls(subject.env)))
    errors = [reply.text for reply in made_up if reply.text.startswith("Error:")]
    return "\n".join([*errors, *(reply.text for reply in await _answers_to(subject, one.task, [wrong.last]))])


async def _answers_to(subject: Subject, task: Task, messages: Sequence[Message]) -> list[Message]:
    """Return what an agent is told after each of these messages, as long as the episode goes on."""
    env, told = subject.make(), list[Message]()
    try:
        await calls.openings(env, task, seed=subject.seed)
        for message in messages:
            result = await calls.step(env, message)
            if result.terminated or result.truncated:
                break
            told += result.messages
    finally:
        await calls.close(env)
    return told


def _wrong_calls(env: Env) -> Iterator[Message]:
    for number, tool in enumerate(env.tools):
        for text in ('{"no_such_argument": 1}', json.dumps(sample(tool.parameters))):
            function = FunctionCall(name=tool.name, arguments=text)
            yield Message(role="assistant", tool_calls=[ToolCall(id=f"wrong_{number}_{len(text)}", function=function)])


def _around(text: str, answer: str) -> str:
    found = re.search(_whole(answer), text)
    start = found.start() if found else 0
    return text[max(0, start - 40) : start + len(answer) + 20].strip()
