"""The process in which an environment is checked.

It is a fork of the checking process, so any class or closure can be checked. A call that awaits too long is detected
here, where the coroutine's stack can be read; `supervise` detects the rest from outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import gc
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from agentrl.envs import attribution
from agentrl.envs.base import Env
from agentrl.envs.check import canary, places
from agentrl.envs.check.circumstances import name_of
from agentrl.envs.check.findings import Finding, Note
from agentrl.envs.check.monitor import Monitor, SharedLabel
from agentrl.envs.check.rules.base import Rule
from agentrl.envs.check.subject import Subject
from agentrl.envs.check.table import RULES
from agentrl.envs.registry import factory
from agentrl.envs.rewards import adding, make_rewards
from agentrl.errors import AgentRLError, EnvError

POLL = 0.1
"""Seconds between two checks for overdue calls."""
STACKS = "stacks"
"""The file, in the process's folder, into which faulthandler writes."""
TOOL_LOGGER = "agentrl.tools.registry"
PR_SET_CHILD_SUBREAPER = 36
"""Of prctl(2): orphans below this process become its children, so that they can be found."""
PR_SET_PDEATHSIG = 1
"""Of prctl(2): this process is killed when the thread ends that forked it, which is the one that reads its results."""
HANG = "give it a time limit, or await what it waits for; a longer one than the limit is allowed by limit=SECONDS"
EXIT = "raise an ordinary exception: a whole run would end with it"


@dataclass(frozen=True)
class CheckJob:
    """The environment, rules and limits of a check, as `check_env` is given them."""

    env: Any
    options: dict[str, Any]
    tasks: int
    seed: int
    limit: float
    rewards: Mapping[str, Any] = field(default_factory=dict)
    hostile: int | None = None
    scored: int = 100
    seconds: float = 10.0


def hang(label: str, limit: float, place: str) -> Finding:
    """The finding for a call that does not return."""
    where = f", and is at {place}" if place else ""
    return Finding("hang", f"{label} has not returned after {limit:g} s{where}", HANG)


def check_in_child(job: CheckJob, send: Connection, shared: SharedLabel, folder: str) -> None:
    """Check, and send ("rule", whether it begins), ("finding", …), ("note", …), ("measured", …), ("done", None).

    Or it ends with ("stop", last finding) or ("raise", error).
    """
    _set_up_process(folder)
    monitor = Monitor(shared)
    monitor.canary = canary.hide(folder)
    monitor.traces.install()
    log = logging.getLogger(TOOL_LOGGER)
    log.setLevel(logging.DEBUG)
    log.handlers, log.propagate = [monitor], False
    attribution.watch.set(monitor)
    try:
        make = _factory(job, monitor)
    except EnvError as error:
        _send(send, "finding", Finding("make", str(error)))
        _send(send, "done", None)
    except AgentRLError as error:
        _send(send, "raise", error)
    else:
        try:
            asyncio.run(_check(job, make, send, monitor))
        except BaseException as error:  # a tool raised KeyboardInterrupt, which ends the event loop
            message = (
                f"{monitor.fatal_call or shared.read()[0]} raised {type(error).__name__}, which ends the event loop"
            )
            _send(send, "stop", Finding("exit", message, EXIT))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # whatever threads it has left


def _set_up_process(folder: str) -> None:
    """Give the process its own session and temporary folder, and have faulthandler write stacks on SIGUSR1."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervising process gets it, and ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    supervisor = multiprocessing.parent_process()
    if supervisor is not None and os.getppid() != supervisor.pid:
        os._exit(1)  # it was killed before
    from agentrl.tools.sandbox.docker.owner import state_dir

    os.environ.setdefault("AGENTRL_STATE", str(state_dir()))  # which is in the temporary folder
    temporary = Path(folder) / "tmp"
    temporary.mkdir()
    os.environ["TMPDIR"], tempfile.tempdir = str(temporary), None
    stacks = (Path(folder) / STACKS).open("w")
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    gc.freeze()


def _factory(job: CheckJob, monitor: Monitor) -> Callable[[], Env]:
    label = job.env if isinstance(job.env, str) else getattr(job.env, "__name__", "the environment")
    with monitor.watching(f"importing {label}"):
        build = adding(factory(job.env, **job.options), make_rewards(job.rewards))

    def make() -> Env:
        with monitor.watching(f"making {label}"):
            env = build()
            env.tools.timeout = 2 * job.limit  # the monitor's limit is reached first
            return env

    make()
    return make


async def _check(job: CheckJob, make: Callable[[], Env], send: Connection, monitor: Monitor) -> None:
    monitor.install()
    monitor.traces.listen(asyncio.get_running_loop())
    work = asyncio.ensure_future(_try_rules(job, make, send, monitor))
    while not work.done():
        await asyncio.wait([work], timeout=POLL)
        call = None if work.done() else monitor.overdue(job.limit)
        if call is not None:
            place = places.of_waiting(call.task)
            _send(send, "stop", hang(call.where + monitor.context, job.limit, place))
            return
    error = None if work.cancelled() else work.exception()
    if work.cancelled() or error is not None:
        words = f"{type(error).__name__}: {error}" if error else "CancelledError"
        _send(send, "finding", Finding("failures", f"{monitor.fatal_call or monitor.shared.read()[0]} raised {words}"))
    if "agentrl.envs.sandboxes" in sys.modules:
        from agentrl.envs.sandboxes import close_all

        await close_all()
    if error is None and not work.cancelled() and (last := work.result()) is not None:
        return _send(send, "stop", last)
    _send(send, "done", None)


async def _try_rules(job: CheckJob, make: Callable[[], Env], send: Connection, monitor: Monitor) -> Finding | None:
    """Try them in order; returns what ends the check early."""
    subject = Subject(make, monitor, job.seed, job.hostile, name_of(job.env), job.options, job.scored, job.seconds)
    seen: set[str] = set()
    for rule in RULES:
        if rule.name == "failures":
            subject.tasks = [task for listed, _ in subject.splits.values() for task in listed[: job.tasks]]
            if not subject.tasks:
                return None
        if rule.alone and seen:
            continue
        _send(send, "rule", True)
        async for finding in _findings(rule, subject):
            if finding.message not in seen:  # one fault often shows under several rules
                seen.add(finding.message)
                _send(send, "note" if isinstance(finding, Note) else "finding", finding)
        if rule.name == "scores":
            _send(send, "measured", subject.scores)
        _send(send, "rule", False)
        gc.collect()
        gc.freeze()  # episodes that are kept to be compared: each later collection would look at all of them
        if rule.name == "failures" and all(episode.error for episode in subject.all_played()):
            return Finding(rule.name, "no episode could be played", "run the check again once that is mended")
    _send(send, "measured", subject.measured)
    return None


async def _findings(rule: Rule, subject: Subject) -> AsyncIterator[Finding | Note]:
    try:
        async for found in rule.check(subject):
            yield Note(found.message, rule.name) if isinstance(found, Note) else Finding(rule.name, found, rule.fix)
    except AgentRLError as error:
        yield Finding(rule.name, str(error), rule.fix)
    except Exception as error:
        yield Finding(rule.name, f"{type(error).__name__}: {error}", rule.fix)


def _send(send: Connection, kind: str, value: Any) -> None:
    send.send((kind, _readable(value) if isinstance(value, AgentRLError) else value))


def _readable(error: AgentRLError) -> AgentRLError:
    """The error, or its nearest base class in agentrl: the supervising process may not have imported its own class."""
    ours = (kind for kind in type(error).__mro__ if kind.__module__.startswith("agentrl."))
    kind: type[AgentRLError] = next(ours)
    return kind(str(error))
