"""The verdict on a sandbox against its task: looked at from inside, compared outside.

One program of ours reads the files in the sandbox after the agent has ended, loads nothing of the agent's, and tells
what there is; a program that the agent wrote is run with inputs that it has not seen. What must be so never
enters the sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from agentrl.common.untrusted import read_json
from agentrl.errors import DeadlineExceeded
from agentrl.tools.sandbox.base import Process, Sandbox, SandboxMemory
from agentrl.tools.sandbox.runner.interpreter import InteractiveProcess

SECONDS = 20.0
"""For each command of the verifier's."""
MAX_FILE = 20_000
"""Bytes of a file that are compared."""
OUTPUT = 1 << 20
READER = f"""
import json, os, stat, sys
found = {{}}
for path in json.load(sys.stdin):
    try:
        status = os.lstat(path)
        regular = stat.S_ISREG(status.st_mode)
        data = open(path, "rb").read({MAX_FILE + 1}) if regular else b""
        found[path] = [regular, oct(stat.S_IMODE(status.st_mode))[2:], data.decode("utf-8", "replace")]
    except FileNotFoundError:
        found[path] = None
    except OSError:
        found[path] = [False, "", ""]
print(json.dumps(found))
"""


async def list_passed(
    sandbox: Sandbox, checks: Sequence[Mapping[str, Any]], programs: Mapping[str, Process], ending: float
) -> list[bool]:
    """The checks that hold.

    Args:
        sandbox: after the agent's last command.
        checks: each is of a file (`path`, with `text`, `mode` or `absent`), of a command (`run`, with `stdin` and
            `stdout`), or of a background program (`program`, with `running`).
        programs: those that were started with the task.
        ending: seconds for a program that was sent a signal to end.

    Raises:
        SandboxError: the sandbox failed.
    """
    for check in checks:
        if "program" in check and not check["running"] and (process := programs.get(check["program"])) is not None:
            await _wait_for_end(process, ending)
    try:
        # Another command of the sandbox in between: the end of whatever was stopped with that program is known by then.
        files = await _read(sandbox, [check["path"] for check in checks if "path" in check])
        running = {name: process.running for name, process in programs.items()}
        return [await _holds(sandbox, check, files, running) for check in checks]
    except SandboxMemory:  # the agent has left no memory to look with
        return [False] * len(checks)


async def _wait_for_end(process: Process, seconds: float) -> None:
    """Wait until a program has ended or has had its time to, as the sandbox counts it where it can."""
    if isinstance(process, InteractiveProcess):
        await process.wait_for_report(b"its end", seconds)
        return
    with suppress(DeadlineExceeded):
        await process.wait(seconds)


async def _holds(
    sandbox: Sandbox, check: Mapping[str, Any], files: Mapping[str, Any], running: Mapping[str, bool]
) -> bool:
    if "program" in check:
        return bool(running.get(check["program"], False) == check["running"])
    if "run" in check:
        result = await sandbox.exec(check["run"], stdin=check["stdin"], timeout=SECONDS)
        return result.ok and result.stdout.decode(errors="replace").rstrip() == check["stdout"].rstrip()
    found = files.get(check["path"], [False, "", ""])
    if check.get("absent"):
        return found is None
    if found is None or not found[0]:
        return False
    return bool(found[2] == check["text"] and check.get("mode") in (None, found[1]))


async def _read(sandbox: Sandbox, paths: Sequence[str]) -> dict[str, Any]:
    """Look at each path: None, or whether it is a regular file, its mode and its text; {} if that can't be told."""
    command = ["/usr/bin/env", "python3", "-I", "-S", "-c", READER]
    result = await sandbox.exec(command, stdin=json.dumps(paths), timeout=SECONDS, limit=OUTPUT)
    try:
        found = read_json(result.stdout) if result.ok else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
