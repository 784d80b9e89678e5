"""Rules about costs: making instances, what outlives them, results that grow. Measures turns and instances."""

from __future__ import annotations

import gc
import json
import sys
import tracemalloc
import weakref
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.envs.check import places
from agentrl.envs.check.findings import Measured
from agentrl.envs.check.monitor import LoopClock
from agentrl.envs.check.subject import Subject
from agentrl.envs.data.samples import sample
from agentrl.errors import AgentRLError
from agentrl.tools.tool import Tool
from agentrl.types import FunctionCall, Message, ToolCall

MADE = 5
"""Instances that are made one after another."""
MAKING_SECONDS = 0.1
"""Seconds that making one may take."""
INSTANCE_BYTES = 16 * 2**20
"""Bytes that one in an episode may take: hundreds exist side by side."""
FIRST, REPEATED = 2, 6
"""Episodes after which caches are full, and those that are compared."""
ROUNDS = 2
"""The number of rounds, where the first ones left something behind."""
NEARLY = 0.75
"""The share of them that must show the fault."""
KEPT_BYTES = 512
"""Bytes that an episode must leave behind to count."""
LONG = 1.0
"""Seconds; where an episode takes longer, nothing is repeated."""
SAME_CALLS = 24
"""The number of times that the same call is made."""
GROWN, TIMES = 500, 3
"""Characters, and multiples of the first result, that a result must have grown by."""


async def instances(subject: Subject) -> AsyncIterator[str]:
    """Making an instance takes at most 100 ms, and it needs at most 16 MB.

    It measures these, and a turn's time.
    """
    clock, seconds = LoopClock(), list[float]()
    for _ in range(MADE):
        moment = clock.now()
        subject.make()
        seconds.append(clock.since(moment))
    taken = await _instance_bytes(subject)
    subject.measured = Measured(1000 * _step_seconds(subject), taken)
    if median(seconds) > MAKING_SECONDS:
        yield f"making an instance takes {1000 * median(seconds):.0f} ms (limit {1000 * MAKING_SECONDS:g} ms)"
    if taken > INSTANCE_BYTES:
        yield f"an instance takes {taken / 2**20:.0f} MB (limit {INSTANCE_BYTES // 2**20} MB)"


async def freed(subject: Subject) -> AsyncIterator[str]:
    """Nothing refers to an instance whose episode is closed."""
    if not await _repeatable(subject):
        return
    made: list[weakref.ref[Env]] = []
    for _ in range(REPEATED):
        await subject.play(subject.tasks[0], subject.default, 0)
        made.append(weakref.ref(subject.instance.unwrapped))
    subject.instance = subject.env
    gc.collect()
    alive = [env for ref in made if (env := ref()) is not None]
    if len(alive) >= NEARLY * REPEATED:
        yield f"{len(alive)} of {REPEATED} closed instances are still referred to, {_holder(alive[0])}"


async def memory(subject: Subject) -> AsyncIterator[str]:
    """Closed episodes leave no objects behind.

    They go on leaving none: a cache may become full meanwhile.
    """
    if not await _repeatable(subject):
        return
    tracemalloc.start()
    try:
        with subject.monitor.unattributed():
            for _ in range(FIRST):
                await subject.play(subject.tasks[0], subject.default, 0)
            before, left = _snapshot(subject), dict[tuple[str, int], int]()
            for round_ in range(ROUNDS):
                for _ in range(REPEATED):
                    await subject.play(subject.tasks[0], subject.default, 0)
                after = _snapshot(subject)
                found = _measure_left(subject, before, after)
                left = {place: size for place, size in found.items() if not round_ or place in left}
                if not left:
                    return
                before = after
    finally:
        tracemalloc.stop()
    (file, line), size = next(iter(left.items()))
    yield f"each episode leaves {size / REPEATED / 1024:.1f} KB behind, made at {places.short(file)}:{line}"


def _measure_left(
    subject: Subject, before: tracemalloc.Snapshot, after: tracemalloc.Snapshot
) -> dict[tuple[str, int], int]:
    """The bytes that nearly every episode between two snapshots has left behind, by file and line, most first."""
    folders, left = _own_folders(subject), dict[tuple[str, int], int]()
    for change in after.compare_to(before, "lineno"):
        place = change.traceback[0]
        many = change.count_diff >= NEARLY * REPEATED and change.size_diff >= KEPT_BYTES * REPEATED
        if many and Path(place.filename).parent in folders:
            left[place.filename, place.lineno] = change.size_diff
    return left


async def growth(subject: Subject) -> AsyncIterator[str]:
    """A tool's result does not grow with each call."""
    if not await _repeatable(subject):
        return
    for tool in subject.env.tools:
        lengths = await _lengths(subject, tool)
        growing = sum(one < other for one, other in pairwise(lengths))
        if growing >= NEARLY * SAME_CALLS and lengths[-1] - lengths[0] > max(GROWN, TIMES * lengths[0]):
            words = f"{lengths[0]:,} characters at the first and {lengths[-1]:,} at the {len(lengths)}th of equal calls"
            yield f"the result of tool {tool.name!r} grows: {words}"


async def _lengths(subject: Subject, tool: Tool) -> list[int]:
    """The lengths of a tool's results, where the same call is made again and again."""
    env, lengths = subject.make(), list[int]()
    function = FunctionCall(name=tool.name, arguments=json.dumps(sample(tool.parameters)))
    subject.label(subject.tasks[0], "agent of equal calls")
    try:
        await calls.openings(env, subject.tasks[0], seed=subject.seed)
        for number in range(SAME_CALLS):
            call = ToolCall(id=f"same_{number}", function=function)
            result = await calls.step(env, Message(role="assistant", tool_calls=[call]))
            lengths.append(sum(len(message.text) for message in result.messages))
            if result.terminated or result.truncated:
                break
    except AgentRLError:  # which `failures` reports
        return []
    finally:
        await calls.close(env)
    return lengths


async def _repeatable(subject: Subject) -> bool:
    """Return whether an episode works and is short enough to be played several times."""
    episode = await subject.episode(subject.tasks[0], subject.default)
    return episode.session is not None and episode.seconds < LONG


async def _instance_bytes(subject: Subject) -> int:
    """The Python memory of an instance whose episode has begun; one at a time, since a server may have one session."""
    taken = list[int]()
    tracemalloc.start()
    try:
        for _ in range(MADE):
            gc.collect()
            before, env = tracemalloc.get_traced_memory()[0], subject.make()
            try:
                await calls.openings(env, subject.tasks[0], seed=subject.seed)
                taken.append(tracemalloc.get_traced_memory()[0] - before)
            finally:
                await calls.close(env)
        return int(median(taken))
    except AgentRLError:  # which `failures` reports
        return 0
    finally:
        tracemalloc.stop()


def _step_seconds(subject: Subject) -> float:
    """The median time of a step."""
    called = (call for episode, _ in subject.played() for call in episode.calls)
    times = [call.seconds for call in called if call.where.partition(" ")[0].endswith(".step")]
    return median(times) if times else 0.0


def _snapshot(subject: Subject) -> tracemalloc.Snapshot:
    subject.instance = subject.env
    gc.collect()
    return tracemalloc.take_snapshot()


def _own_folders(subject: Subject) -> set[Path]:
    """The folders of the files in which the environment's class and its bases are written, without Python's own."""
    modules = {base.__module__ for base in type(subject.env.unwrapped).__mro__}
    own = (sys.modules.get(name) for name in modules if name.partition(".")[0] not in sys.stdlib_module_names)
    return {Path(file).parent for module in own if (file := getattr(module, "__file__", None))}


def _holder(env: Env) -> str:
    for base in type(env).__mro__[:-1]:
        for name, member in vars(base).items():
            if hasattr(member, "cache_info") and member.cache_info().currsize:
                return f"by the cache of {base.__qualname__}.{name}: functools.cache on a method keeps `self`"
    for name, holder in _globals(type(env)):
        held = holder.values() if isinstance(holder, Mapping) else holder if isinstance(holder, Collection) else ()
        if any(one is env for one in held):
            return f"in {name}, a {type(holder).__name__}"
    kinds = {type(referrer).__name__ for referrer in gc.get_referrers(env)} - {"frame", "list", "cell"}
    return f"by a {', a '.join(sorted(kinds))}" if kinds else "by something outside of the environment's modules"


def _globals(env: type) -> Iterator[tuple[str, Any]]:
    """The names in the modules and classes of an environment's class, and what they stand for."""
    for base in env.__mro__[:-1]:
        for scope, owner in ((sys.modules.get(base.__module__), base.__module__), (base, base.__qualname__)):
            for name, value in vars(scope).items() if scope else ():
                yield f"{owner}.{name}", value
