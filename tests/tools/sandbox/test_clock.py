"""Limits on a busy machine: what a command waits for a processor does not count, what it computes or sleeps does."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress

import pytest

from agentrl.errors import Blame
from agentrl.tools.registry import ToolRegistry
from agentrl.tools.sandbox.base import Outcome, Sandbox, SandboxStarved
from agentrl.tools.sandbox.runner.interpreter import Interpreter
from agentrl.tools.sandbox.toolkit import Toolkit
from agentrl.types import FunctionCall, ToolCall
from tests.tools.sandbox.busy import LOOP, beside
from tests.tools.sandbox.conftest import SMALL, Make

COMPUTE = """
import time
while time.process_time() < {seconds}:
    pass
print("done")
"""
YIELD = "(echo 19 > /proc/self/autogroup) 2> /dev/null; renice -n 19 $$ > /dev/null"
KEEP_EACH_OTHER = """
import os, time
for _ in range(20):
    if not os.fork():
        while True:
            time.sleep(0.2 - time.time() % 0.2)
            end = time.time() + 0.001
            while time.time() < end:
                pass
time.sleep(1000)
"""


async def test_the_same_program_ends_alike_on_a_busy_core() -> None:
    """Beside two others, a program that computes for 0.7 of its 1.5 seconds takes longer than these by the clock."""
    async with beside(2) as sandbox:
        within = await sandbox.exec(["python3", "-c", COMPUTE.format(seconds=0.7)], timeout=1.5)
        assert (within.outcome, within.stdout) == (Outcome.EXITED, b"done\n")
        assert await is_stopped(sandbox, LOOP)
        assert await is_stopped(sandbox, ["sleep", "1000"])


async def test_the_same_cell_ends_alike_on_a_busy_core() -> None:
    async with beside(2) as sandbox:
        python = Interpreter(sandbox)
        within = await python.run(COMPUTE.format(seconds=0.7), timeout=1.5)
        assert (within.outcome, within.stdout) == (Outcome.EXITED, b"done\n")
        assert (await python.run("time.sleep(1000)", timeout=0.3)).outcome is Outcome.TIMEOUT
        with suppress(SandboxStarved):
            assert (await python.run("while True: pass", timeout=0.5)).outcome is Outcome.TIMEOUT


async def test_a_tools_deadline_moves_on_by_what_its_commands_wait() -> None:
    async with beside(2) as sandbox:

        async def provide() -> Sandbox:
            return sandbox

        registry = ToolRegistry(Toolkit(["bash"], timeout=20.0).tools, timeout=2.0, sandbox=provide)
        within = await registry.run(call("python3 -c '" + COMPUTE.format(seconds=0.8) + "'"))
        assert within.content == "done", within
        late = await registry.run(call("sleep 1000"))
        assert "took longer than 2 s" in str(late.content), late


def call(command: str) -> ToolCall:
    return ToolCall(id="1", function=FunctionCall(name="bash", arguments=json.dumps({"command": command})))


async def test_a_program_without_a_processor_has_no_result_and_the_machine_is_to_blame() -> None:
    """Beside four others it has 0.4 percent of a core, by its own wish: so this test is no burden to others."""
    async with beside(4) as sandbox:
        with pytest.raises(SandboxStarved, match="too little processor time") as caught:
            await sandbox.exec(f"{YIELD}; exec {shlex.join(LOOP)}", timeout=0.05)
        assert caught.value.blame is Blame.INFRA


async def is_stopped(sandbox: Sandbox, command: list[str]) -> bool:
    """Whether a program's time is up in the end: its own, or all that a machine far busier than meant here has."""
    try:
        return (await sandbox.exec(command, timeout=0.5)).outcome is Outcome.TIMEOUT
    except SandboxStarved:
        return True


async def test_a_command_gains_no_time_by_keeping_its_own_processes_from_each_other(make: Make) -> None:
    sandbox = make(SMALL)
    for command in (
        ["python3", "-c", KEEP_EACH_OTHER],
        ["sh", "-c", f"for i in 1 2 3 4 5 6; do ({LOOP[2]})& done; wait"],
    ):
        assert (await sandbox.exec(command, timeout=1.0)).outcome is Outcome.TIMEOUT
