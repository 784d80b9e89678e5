"""Rules about instances that share a process: determinism, isolation, closing, leaks, the event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from statistics import median

from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.envs.check.resources import SHARED, find_leaks, measure_holdings
from agentrl.envs.check.subject import MADE_UP, RANDOM, SILENT, Episode, Subject
from agentrl.envs.episode import noop_policy, play, record
from agentrl.errors import AgentRLError
from agentrl.tools.schema import show_value
from agentrl.types import FunctionCall, Message, Session, Task, ToolCall

REPEATS = 4
"""Repeated episodes that leaks are looked for in, at least."""
CONFIRMING = 12
"""Further ones where most of those leak: a cache or a pool fills up, a leak goes on."""
NEARLY = 0.75
"""The share of them that must leak."""
LONG = 1.0
"""Seconds; episodes that take longer are repeated only `REPEATS` times."""
HOLD = 0.02
"""Seconds that a method may block the event loop: all other episodes wait as long."""
HELD, HELD_PART = 3, 0.2
"""Calls that must have blocked it, and their share of all: the first may load something."""
OFF_LOOP = ("making", "tasks", "expert", "demonstrate", "prepare")
"""Methods that are not called during an episode."""


async def determinism(subject: Subject) -> AsyncIterator[str]:
    """The same task and seed give the same episode."""
    for task in subject.tasks:
        for agent in dict.fromkeys((subject.default, MADE_UP, RANDOM)):
            one = (await subject.episode(task, agent)).session
            again = subject.episode(task, agent, 1) if agent == subject.default else subject.play(task, agent, 0)
            other = (await again).session
            if one is not None and other is not None and (words := _difference(one, other)):
                subject.notes.add("not deterministic")
                yield f"task {task.id!r}{'' if agent == subject.default else f', the {agent}'}{words}"
                return


def _difference(one: Session, other: Session) -> str:
    first, second = record(one), record(other)
    for place, (entry, again) in enumerate(zip(first, second, strict=False)):
        if entry != again:
            return f", entry {place}: the same seed gave first {show_value(entry, 160)}, then {show_value(again, 160)}"
    return "" if len(first) == len(second) else f": the same seed gave {len(first)} and then {len(second)} entries"


async def bad_calls(subject: Subject) -> AsyncIterator[str]:
    """Invalid tool calls are answered."""
    env = subject.make()
    if not len(env.tools) or (await subject.episode(subject.tasks[0], SILENT)).session is None:
        return
    subject.label(subject.tasks[0], "agent of malformed calls")
    name = env.tools.names[0]
    bad = [
        ToolCall(id="bad_0", function=FunctionCall(name="no_such_tool")),
        ToolCall(id="bad_1", function=FunctionCall(name=name, arguments='{"no_such_argument": 1}')),
        ToolCall(id="bad_2", function=FunctionCall(name=name, arguments="{")),
        ToolCall(id="bad_3", function=FunctionCall(name=name), error="not a call"),
    ]
    try:
        await calls.openings(env, subject.tasks[0], seed=subject.seed)
        result = await calls.step(env, Message(role="assistant", tool_calls=bad))
    except AgentRLError as error:
        if all(str(error) != str(episode.error) for episode in subject.all_played()):  # else it is reported already
            yield f"given invalid calls, {error}"
        return
    finally:
        await calls.close(env)
    answered = [message.tool_call_id for message in result.messages if message.role == "tool"]
    over = result.terminated or result.truncated
    if not over and answered != [call.id for call in bad]:
        yield f"invalid calls bad_0 … bad_3 were answered under {answered}"


async def isolation(subject: Subject) -> AsyncIterator[str]:
    """Concurrent instances behave as a single one does."""
    played = [(await subject.episode(task, subject.default)).session for task in subject.tasks]
    alone = [session for session in played if session is not None]
    if "not deterministic" in subject.notes or len(alone) < len(played):
        return
    subject.monitor.context = " (with concurrent episodes)"
    with subject.monitor.unattributed():
        together = await asyncio.gather(
            *(_play_interleaved(subject, task) for task in subject.tasks), return_exceptions=True
        )
    for task, one, other in zip(subject.tasks, alone, together, strict=True):
        if isinstance(other, BaseException):
            yield f"task {task.id!r} differs while other instances run: {other}"
            return
        if record(one) != record(other):
            yield f"task {task.id!r} differs while other instances run"
            return


async def closing(subject: Subject) -> AsyncIterator[str]:
    """`close` may be called at any time, and twice."""
    task = subject.tasks[0]
    subject.label(task, "silent agent")
    for when, times in (("before reset", 1), ("after reset", 1), ("after an episode", 2)):
        env = subject.make()
        try:
            if when == "after reset":
                await calls.openings(env, task, seed=subject.seed)
            elif when == "after an episode":
                await play(env, task, noop_policy, max_turns=subject.limit, close=False)
        except AgentRLError:  # which `failures` reports
            return
        for time in range(1, times + 1):
            try:
                await calls.close(env)
            except AgentRLError as error:
                yield f"close {'for the second time ' if time == 2 else ''}{when} failed: {error}"
                return


async def leaks(subject: Subject) -> AsyncIterator[str]:
    """`close` releases files, threads and processes.

    Only repeated episodes are checked, so that what a module keeps for all of them exists already.
    """
    repeated = await subject.episodes(subject.default, copies=(1,))
    for copy in range(2, REPEATS + 1):
        if repeated and len(repeated) < REPEATS:
            repeated.append(await subject.episode(repeated[0].task, subject.default, copy))
    for kind in ("open file", "thread", "asyncio task", "process", "temporary file", *SHARED):
        leaving = [episode for episode in repeated if episode.left.get(kind)]
        if repeated and 2 * len(leaving) >= len(repeated) and await _leak_persists(subject, kind, leaving):
            names = sorted({name for episode in leaving for name in episode.left[kind]})
            number = len(leaving[0].left[kind])
            yield f"each episode leaves {number} {_plural(kind, number)} behind after close, such as {names[0]}"


async def globals_kept(subject: Subject) -> AsyncIterator[str]:
    """Global random generators, the working directory, environment variables and settings of the process stay."""
    seeded: set[tuple[str, str]] = set()
    for task in subject.tasks:
        first, second = [await subject.episode(task, subject.default, copy) for copy in (0, 1)]
        for one, other in zip(first.calls, second.calls, strict=False):
            for module, (before, after) in one.random.items():
                start, end = other.random.get(module, (b"", b""))
                if one.where == other.where and start and before and before != start and after == end:
                    seeded.add((one.where, module))
    for where, module in sorted(seeded):
        yield f"{where} seeds the global generator of {module}, which all episodes share"
    changes: dict[tuple[str, str], set[int]] = defaultdict(set)
    for number, episode in enumerate(subject.all_played()):
        for call in episode.calls:
            for what in call.changed:
                changes[call.where.partition(" ")[0], what].add(number)
    for (where, what), episodes in sorted(changes.items()):
        if len(episodes) > 1:  # once may be an import
            yield f"{where} changes {what}, which all episodes share"


async def blocking(subject: Subject) -> AsyncIterator[str]:
    """No method blocks the event loop for more than 20 ms."""
    held: dict[str, list[float]] = defaultdict(list)
    number = Counter[str]()
    for episode in subject.all_played():
        for call in episode.calls:
            if call.where.partition(" ")[0].rpartition(".")[2] in OFF_LOOP:
                continue
            number[call.where] += 1
            if call.held > HOLD:
                held[call.where].append(call.held)
    for where, times in held.items():
        if len(times) >= max(HELD, HELD_PART * number[where]):
            words = f"{1000 * median(times):.0f} ms in {len(times)} of {number[where]} calls"
            yield f"{where} blocks the event loop for {words}; all other episodes wait (limit {HOLD * 1000:g} ms)"


async def _play_interleaved(subject: Subject, task: Task) -> Session:
    policy = subject.policy(subject.default)

    async def interleaved(env: Env, messages: Sequence[Message]) -> Message:
        await asyncio.sleep(0)
        reply = policy(env, messages)
        message = await reply if inspect.isawaitable(reply) else reply
        await asyncio.sleep(0)
        return message

    return await play(subject.make(), task, interleaved, seed=subject.seed, max_turns=subject.limit)


async def _leak_persists(subject: Subject, kind: str, leaving: list[Episode]) -> bool:
    """Return whether nearly all further episodes leak as well."""
    number = CONFIRMING if max(episode.seconds for episode in leaving) < LONG else REPEATS
    before, instances = measure_holdings(), []
    for copy in range(number):
        await subject.episode(leaving[copy % len(leaving)].task, subject.default, next(subject.copies))
        instances.append(subject.instance)
    return len((await find_leaks(before))[kind]) >= number * NEARLY


def _plural(kind: str, number: int) -> str:
    if number == 1:
        return kind
    if " in " in kind:
        return kind.replace("file", "files", 1)
    return f"{kind}es" if kind.endswith("s") else f"{kind}s"
