"""Supervising the process in which an environment is checked.

The checked code may loop for ever, end its process, or crash it. So the running call is read from memory that both
processes share, and its line from the stacks that faulthandler writes even while no other Python code runs.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from agentrl.common.processes import descendants, kill
from agentrl.envs.check import places
from agentrl.envs.check.child import EXIT, POLL, STACKS, CheckJob, check_in_child, hang
from agentrl.envs.check.findings import Finding, Measured, Note, Scores
from agentrl.envs.check.monitor import SharedLabel
from agentrl.envs.check.table import RULES

GRACE = 1.0
"""Seconds in which the process itself may report an overdue call, before this one does."""
TOTAL = 10
"""The whole check may take this many times as long as one call, without the time that it waits for a core."""
DUMP_SECONDS = 2.0
"""For faulthandler to write the stacks."""
EXIT_SECONDS = 10.0
"""For a process whose pipe is closed to end."""


@dataclass(frozen=True)
class CheckProgress:
    """A check's progress."""

    rule: str
    proves: str
    doing: str = ""
    seconds: float = 0.0
    done: bool = False


def supervise(job: CheckJob) -> Iterator[Finding | CheckProgress | Measured | Note | Scores]:
    """Check an environment in a process of its own; yields findings, progress and measurements as they come.

    Raises:
        UnknownName: nothing of that name.
        ConfigError: the options are wrong.
    """
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    shared = SharedLabel()
    with tempfile.TemporaryDirectory(prefix="agentrl-check-", ignore_cleanup_errors=True) as folder:
        stacks = Path(folder) / STACKS
        process = context.Process(target=check_in_child, args=(job, send, shared, folder), name="agentrl-check")
        process.start()
        send.close()
        try:
            yield from _events(job, receive, shared, process, stacks)
        finally:
            _end(process)
            receive.close()


def _events(
    job: CheckJob, receive: Connection, shared: SharedLabel, process: BaseProcess, stacks: Path
) -> Iterator[Finding | CheckProgress | Measured | Note | Scores]:
    began, tried = time.monotonic(), 0
    rule = CheckProgress("make", "an instance can be made")
    kind: str
    value: Any
    while True:
        try:
            kind, value = receive.recv() if receive.poll(POLL) else ("", None)
        except (EOFError, OSError):
            process.join(EXIT_SECONDS)
            yield _report_stop(_process_ended(shared, process, stacks), tried)
            return
        label, since = shared.read()
        taken = time.monotonic() - since if since else 0.0
        if kind == "raise":
            raise value
        if kind == "done":
            return
        if kind == "rule":
            if value:
                rule = CheckProgress(RULES[tried].name, RULES[tried].proves)
                tried += 1
            else:
                rule = CheckProgress(rule.rule, rule.proves, done=True)
            yield rule
        elif kind in ("finding", "note") or (kind == "measured" and value is not None):
            yield value
        elif kind == "stop":
            yield _report_stop(value, tried)
            return
        elif taken > job.limit + GRACE:
            place = places.of_dump(_dump(process, stacks))
            yield _report_stop(hang(label, job.limit, place), tried)
            return
        elif time.monotonic() - began - _waited_for_a_core(process) > TOTAL * job.limit:
            words = f"the check has taken {TOTAL * job.limit:g} s and is not finished"
            fix = "fewer tasks (tasks=1) take less time; limit=SECONDS allows more"
            yield _report_stop(Finding("time", words, fix), tried)
            return
        else:
            yield CheckProgress(rule.rule, rule.proves, label if since else "", taken)


def _waited_for_a_core(process: BaseProcess) -> float:
    """Seconds for which a process could have run and others did; 0 where the kernel does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def _report_stop(finding: Finding, tried: int) -> Finding:
    left = len(RULES) - tried
    words = f"; the check ended here, {left} of {len(RULES)} rules were not checked" if left else ""
    return Finding(finding.rule, finding.message + words, finding.fix)


def _process_ended(shared: SharedLabel, process: BaseProcess, stacks: Path) -> Finding:
    label, since = shared.read()
    code = process.exitcode
    how = f"exit status {code}"
    if code is not None and code < 0:
        how = f"signal {signal.Signals(-code).name}"
    place = places.of_dump(_read(stacks))
    where = f" at {place}" if place else ""
    who = label if since else f"something after {label or 'the start'}"
    return Finding("exit", f"{who} ended the whole process{where} ({how})", EXIT)


def _dump(process: BaseProcess, stacks: Path) -> str:
    """The stacks of a process that may be stuck."""
    with contextlib.suppress(ProcessLookupError, TypeError):
        os.kill(process.pid, signal.SIGUSR1)  # type: ignore[arg-type]
    deadline, text = time.monotonic() + DUMP_SECONDS, ""
    while time.monotonic() < deadline:
        before, text = text, _read(stacks)
        if text and text == before:
            break
        time.sleep(POLL / 2)
    return text


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _end(process: BaseProcess) -> None:
    below = descendants(process.pid) if process.pid else []
    process.kill()
    process.join()
    kill(below)
