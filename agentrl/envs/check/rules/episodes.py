"""Rules about episodes: failures, roles, lengths, endings, failing tools, results without content."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator

from agentrl.envs.check import places, scores
from agentrl.envs.check.subject import CAP, EXPERT, MADE_UP, SILENT, Subject
from agentrl.tools.registry import LEFT_OUT
from agentrl.types import Status

OBSERVATION_CHARS = 400_000
"""About 100,000 tokens: more than most contexts hold."""
SYSTEM = ("system", "developer")
ADDRESS = re.compile(r"<[\w.]+(?: object)? at 0x[0-9a-f]+>")
"""The text that Python writes for an object that says nothing of itself."""
NOTHING = ("", "null", "None")
"""Results that tell an agent nothing."""
CUT_OFF = " took longer than "
"""The text in the answer to a call that ran past its deadline."""
SEVERAL = 3
"""Results that a tool must have given to be judged by them."""


async def failures(subject: Subject) -> AsyncIterator[str]:
    """Episodes of the expert, a silent, a systematic and a random agent run without an error."""
    for task in subject.tasks:
        for agent in (*((EXPERT,) if subject.expert else ()), MADE_UP, SILENT):
            await subject.episode(task, agent)
    await subject.random_episodes()
    await scores.play_all(subject)
    seen: set[tuple[str, str]] = set()
    for episode in subject.all_played():
        if episode.error is None:
            continue
        cause = episode.error.__cause__ or episode.error
        place, words = places.of_error(cause), str(episode.error) or type(episode.error).__name__
        key = type(cause).__name__, place or words
        if key not in seen:
            seen.add(key)
            yield f"{words} ({episode.name}{f', at {place}' if place else ''})"


async def late_tools(subject: Subject) -> AsyncIterator[str]:
    """No tool's thread goes on after the tool's deadline."""
    seen: set[str] = set()
    for episode, session in subject.played():
        if not session.counters.get("late_calls"):
            continue
        cut_off = {message.name for message in session.messages if message.role == "tool" and CUT_OFF in message.text}
        for name in sorted(filter(None, cut_off - seen)):
            late = session.counters.get("late_effects", 0)
            lost = f", and {late} calls of earn, end or spawn that came too late were dropped" if late else ""
            yield f"{episode.name}: {name!r} goes on in its thread after its deadline{lost}"
        seen.update(filter(None, cut_off))


async def opening(subject: Subject) -> AsyncIterator[str]:
    """The opening messages end with one that the agent can answer."""
    for episode, _ in subject.played():
        if episode.opening[-1].role == "assistant":
            yield f"task {episode.task.id!r}: reset's last message is the assistant's own, with nothing to answer"
            return


async def roles(subject: Subject) -> AsyncIterator[str]:
    """System messages come first, and `step` returns no assistant messages."""
    for episode, session in subject.played():
        messages = session.messages
        by_assistant = [message.role == "assistant" for message in messages]
        for place, message in enumerate(messages):
            if message.role in SYSTEM and place and any(one.role not in SYSTEM for one in messages[:place]):
                yield f"{episode.name}: entry {place} is a {message.role} message in the middle of the conversation"
                return
            if place > len(episode.opening) and message.role == "assistant" and by_assistant[place - 1]:
                yield f"{episode.name}: entry {place}, which step returned, is an assistant message"
                return


async def lengths(subject: Subject) -> AsyncIterator[str]:
    """No message has more than 400,000 characters."""
    for episode, session in subject.played():
        for place, message in enumerate(session.messages):
            if message.role == "assistant":
                continue
            cut = LEFT_OUT.search(message.text)
            length = len(message.text) + (int(cut[1]) - len(cut[0]) if cut else 0)
            if length > OBSERVATION_CHARS:
                what = f"the result of tool {message.name!r}" if message.name else f"a {message.role} message"
                yield f"{episode.name}: entry {place}, {what}, has {length:,} characters"
                return


async def endings(subject: Subject) -> AsyncIterator[str]:
    """Episodes end."""
    if subject.limit is None:
        return
    limit = subject.env.max_turns
    for episode, session in subject.played():
        if session.status is Status.TRUNCATED and session.turns >= CAP:
            has = "no max_turns" if limit is None else f"max_turns = {limit}"
            yield f"{episode.name}: it had not ended after {CAP} turns, and the environment has {has}"
            return


async def failing_tools(subject: Subject) -> AsyncIterator[str]:
    """No tool fails at every call."""
    called, raised, late = Counter[str](), Counter[str](), Counter[str]()
    first: dict[str, str] = {}
    for episode, session in subject.played():
        for message in session.messages:
            if message.role == "tool" and message.name:
                called[message.name] += 1
                late[message.name] += message.text.startswith(f"Error: {message.name!r} took longer than")
        for failure in episode.failures:
            raised[failure.tool] += 1
            first.setdefault(failure.tool, failure.error + (f" at {failure.place}" if failure.place else ""))
    for name, number in called.items():
        if raised[name] >= number:
            yield f"tool {name!r} raised at every one of {number} calls: {first[name]}"
        elif late[name] >= number:
            yield f"tool {name!r} timed out at every one of {number} calls"


async def reprs(subject: Subject) -> AsyncIterator[str]:
    """No message has an object's address in it."""
    for episode, session in subject.played():
        for place, message in enumerate(session.messages):
            found = None if message.role == "assistant" else ADDRESS.search(message.text)
            if found and not any(found[0] in one.text for one in session.messages[:place] if one.role == "assistant"):
                yield f"{episode.name}: entry {place} has an object's address, {found[0]!r}"
                return


async def empty_results(subject: Subject) -> AsyncIterator[str]:
    """Every tool tells the agent something."""
    given, empty = Counter[str](), Counter[str]()
    for _, session in subject.played():
        for message in session.messages:
            if message.role == "tool" and message.name and not message.text.startswith("Error:"):
                given[message.name] += 1
                empty[message.name] += message.text.strip() in NOTHING and not message.images
    for name, number in given.items():
        if number >= SEVERAL and empty[name] == number:
            yield f"tool {name!r} told the agent nothing at any of {number} calls"
