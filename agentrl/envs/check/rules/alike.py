"""Rules about tasks that are the same although their data differs: one prompt for all, evaluation on training tasks.

What an agent is told is compared, and what the expert does: numbers of rows, spaces and capitals in the data of a task
make no other task of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import combinations
from typing import Any

from agentrl.envs.check.subject import EXPERT, Episode, Subject
from agentrl.envs.check.trivial import write_message
from agentrl.envs.episode import record
from agentrl.tools.schema import show_value
from agentrl.types import Message, Session, Task

FEWEST = 3
"""Tasks that are compared, at least."""
NUMBER = re.compile(r"id|index|row|line|number|no|nr|n|i|idx|position|split|uid|uuid|seed", re.IGNORECASE)
"""Keys that number a task."""
SHARED = 0.5
"""The share of a split's tasks that may be another split's but for numbers and spaces, or played alike, by chance."""
TRAINED = {"train", "demo"}
"""Splits that are trained on: these may share tasks with each other."""
PLAYED = 12
"""Tasks that are played once more from JSON."""


async def prompts(subject: Subject) -> AsyncIterator[str]:
    """The prompt tells which task it is.

    It is checked where the expert's answer differs and it has looked nothing up.
    """
    played = subject.played_by(EXPERT)
    if len(played) < FEWEST or len(subject.env.agents) > 1:
        return
    openings = {_openings(episode) for episode, _ in played}
    firsts = {write_message(_first(session)): (episode, session) for episode, session in played}
    if len(openings) > 1 or len(firsts) == 1:
        return
    (one, session), (_, other) = list(firsts.values())[:2]
    told = "\n".join([next(iter(openings)), json.dumps(subject.env.tools.schemas())])
    blind = all(session.turns == 1 for _, session in played)
    if blind or all(_has_unknown(_first(each), told) for each in (session, other)):
        yield (
            f"all {len(played)} tasks open with the same messages, and the expert goes on differently: "
            f"{_message_text(_first(session))} in task {one.task.id!r}, {_message_text(_first(other))} in another"
        )


async def splits(subject: Subject) -> AsyncIterator[str]:
    """No task is in two splits, nor one that is told and solved alike.

    Numbers, spaces and capitals make no other task.
    """
    for one, other in combinations(subject.splits, 2):
        if {one, other} <= TRAINED:
            continue
        exact, but = _list_shared(subject, one, other, _exact), ""
        if not exact:
            exact, but = _list_shared(subject, one, other, _content), ", but for numbers, spaces and capitals"
            fewest = min(len(listed) for listed, _ in (subject.splits[one], subject.splits[other]))
            exact = exact if len(exact) > SHARED * fewest else []
        if exact:
            words = f"{len(exact)} of the compared tasks{but}, such as {exact[0].id!r} {show_value(exact[0].data, 80)}"
            yield f"splits {one!r} and {other!r} share {words}"
        elif words := _played_alike(subject, one, other):
            yield words


async def stored(subject: Subject) -> AsyncIterator[str]:
    """A task that was stored as JSON is played as before."""
    for episode, session in subject.played_by(subject.default)[:PLAYED]:
        try:
            data = json.loads(json.dumps(episode.task.data))
        except (TypeError, ValueError):
            return  # which `task_data` reports
        if _same(data, episode.task.data) or "not deterministic" in subject.notes:
            continue
        again = await subject.play(episode.task.model_copy(update={"data": data}), subject.default, 0)
        difference = ""
        if again.session is None:
            difference = f"it fails: {again.error}"
        elif record(again.session) != record(session):
            difference = "its episode is another one"
        if difference:
            changed = next(key for key, value in episode.task.data.items() if not _same(data.get(str(key)), value))
            became = (
                f"{show_value(episode.task.data[changed], 80)} comes back as {show_value(data.get(str(changed)), 80)}"
            )
            yield f"task {episode.task.id!r}, stored as JSON and read again: {changed} = {became}, and {difference}"
            return


def _played_alike(subject: Subject, one: str, other: str) -> str:
    """Return how many tasks of a split open and are solved as one of another; '' where they are few."""
    ids = {split: {task.id: task for task in listed} for split, (listed, _) in subject.splits.items()}
    keys: dict[str, dict[str, Task]] = {one: {}, other: {}}
    count = {one: 0, other: 0}
    for episode, session in subject.played_by(EXPERT):
        for split in (one, other):
            if episode.task.id in ids[split] and episode.task.data and len(subject.env.agents) == 1:
                opening = _plain(_without_number(_openings(episode), episode.task))
                solved = "\n".join(
                    _plain(write_message(node.message)) for node in session.nodes[len(episode.opening) :]
                )
                keys[split][f"{opening}\n{solved}"] = episode.task
                count[split] += 1
    both = keys[one].keys() & keys[other].keys()
    varied = len(keys[one]) > 1 and len(keys[other]) > 1
    if varied and len(both) > SHARED * min(count.values()):
        task = keys[other][min(both)]
        words = f"{len(both)} of {min(count.values())} played tasks open and are solved alike"
        return f"splits {one!r} and {other!r}: {words}, such as task {task.id!r}"
    return ""


def _list_shared(subject: Subject, one: str, other: str, key_of: Callable[[Task], str]) -> list[Task]:
    """The tasks of a split that another one has as well."""
    there = {key_of(task) for task in subject.splits[other][0]} - {""}
    return [task for task in subject.splits[one][0] if key_of(task) in there]


def _exact(task: Task) -> str:
    """A task's data without its id, as a key; '' where there is none."""
    data = {key: value for key, value in task.data.items() if key not in ("id", "split")}
    return json.dumps(data, sort_keys=True, default=str) if data else ""


def _content(task: Task) -> str:
    """A task's data without what numbers it, as a key; '' where nothing is left."""
    left = {key: value for key, value in task.data.items() if not NUMBER.fullmatch(str(key))}
    texts = {key: value for key, value in left.items() if _is_content(key, value)}
    return _plain(json.dumps(texts, sort_keys=True, default=str)) if texts else ""


def _is_content(key: Any, value: Any) -> bool:
    """Return whether a value is content: identifiers such as `row_17` are none."""
    return not re.search(r"(^|_)(id|index|row|idx|uid|uuid)$", str(key), re.IGNORECASE)


def _without_number(text: str, task: Task) -> str:
    """A prompt without the numbers of its task."""
    for key, value in task.data.items():
        if (NUMBER.fullmatch(str(key)) or not _is_content(key, value)) and str(value).strip():
            text = re.sub(rf"(?<!\w){re.escape(str(value))}(?!\w)", "", text)
    return text


def _openings(episode: Episode) -> str:
    """An opening's texts and images."""
    return "\n".join(piece for message in episode.opening for piece in (message.text, *message.images))


def _first(session: Session) -> Message:
    return next(node.message for node in session.nodes if node.message.role == "assistant")


def _has_unknown(message: Message, told: str) -> bool:
    """Return whether a call has a word that was not told before."""
    values = _values(message)
    return any(not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", told, re.IGNORECASE) for word in values)


def _values(message: Message) -> list[str]:
    """The words that a message or its calls have."""
    given = [json.loads(call.function.arguments or "{}") for call in message.tool_calls or ()]
    values = [value for each in given if isinstance(each, dict) for value in each.values() if isinstance(value, str)]
    return [word for word in values if word.strip()]


def _same(one: Any, other: Any) -> bool:
    """Return whether values are equal, types of lists and keys included."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and type(other) is list:
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and one == other


def _plain(text: str) -> str:
    """Without differences of spaces and capitals."""
    words = text.replace("\\n", " ").replace("\\t", " ").casefold().split()
    return " ".join(words).replace(' "', '"').replace('" ', '"')


def _message_text(message: Message) -> str:
    made: Sequence[str] = [f"{call.function.name}({call.function.arguments})" for call in message.tool_calls or ()]
    return "; ".join(made) if made else repr(message.text[:60])
