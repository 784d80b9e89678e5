"""The rule about an agent with malformed, hostile and huge calls: what it does must stay its own fault."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

from agentrl.envs.check import places
from agentrl.envs.check.resources import Holdings, find_leaks, measure_holdings
from agentrl.envs.check.subject import HOSTILE, Episode, Subject
from agentrl.errors import AgentRLError
from agentrl.types import Session, Status

SECONDS = 5.0
"""No further episodes are begun after so long, where the number is not asked for."""
SURE = 12
"""Episodes after which what is left is the environment's doing; after fewer, a pool of sandboxes may have opened it."""
SETTLED = 100
"""Episodes after which caches are full: memory is compared from there on."""
GROWTH_MB = 64
"""Megabytes that the process may grow by afterwards."""
NEARLY = 0.75
"""The share of the episodes that must leave something behind."""


async def hostile(subject: Subject) -> AsyncIterator[str]:
    """Malformed, hostile and huge calls are answered, leave nothing behind, and are blamed on the agent."""
    reported = {str(episode.error) for episode in subject.all_played()}
    before, memory, began, number, wanted = Holdings(), 0, time.monotonic(), 0, subject.hostile
    while number < wanted and (subject.patient or wanted == SURE or time.monotonic() - began < SECONDS):
        episode = await subject.play(subject.tasks[number % len(subject.tasks)], HOSTILE, number)
        problem = _problem(episode)
        if problem and str(episode.error) not in reported:
            yield problem
            return
        number += 1
        if number == 1:
            before = measure_holdings()  # what a module keeps for all episodes exists by now
        if number == SETTLED:
            memory = _resident_mb()
        if number == wanted < SURE and [words async for words in _find_left_behind(before, number - 1)]:
            wanted = SURE
    async for words in _find_left_behind(before, number - 1):
        yield words
    if memory and (grown := _resident_mb() - memory) > GROWTH_MB:
        yield f"the process grew by {grown:,} MB in {number - SETTLED} episodes of hostile calls, all of them closed"


def _problem(episode: Episode) -> str:
    """Return what is wrong with an episode; "" where nothing is."""
    if episode.error is not None:
        cause = episode.error.__cause__ or episode.error
        place, blame = places.of_error(cause), getattr(episode.error, "blame", None)
        blamed = f", which blames the {blame}" if isinstance(episode.error, AgentRLError) else ""
        return f"{episode.name}: {episode.error}{f', at {place}' if place else ''}{blamed}"
    session = episode.require_session()
    if session.status not in (Status.COMPLETED, Status.TRUNCATED, Status.AGENT_ERROR):
        return f"{episode.name}: it ended as {session.status}"
    return _list_unanswered(episode, session)


def _list_unanswered(episode: Episode, session: Session) -> str:
    """Calls before the last turn that were not answered once each, in order."""
    for path in session.paths():
        turns = [place for place, node in enumerate(path) if node.message.role == "assistant"]
        for place, following in pairwise(turns):
            asked = [call.id for call in path[place].message.tool_calls or ()]
            between = [node.message for node in path[place + 1 : following]]
            answered = [message.tool_call_id for message in between if message.role == "tool"]
            if asked and answered != asked:
                return f"{episode.name}: calls {asked[:4]} were answered under {answered[:4]}"
    return ""


async def _find_left_behind(before: Holdings, number: int) -> AsyncIterator[str]:
    if number < 1:
        return
    for kind, names in (await find_leaks(before)).items():
        if len(names) >= max(2, number * NEARLY):
            yield f"{len(names)} of {kind} are left after {number} closed episodes, such as {min(names)}"


def _resident_mb() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20
