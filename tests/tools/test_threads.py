"""Threads for tools: a fork leaves them behind, and an error comes out of one as it was raised."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import agentrl

FORKED = """
import asyncio, os, sys
from agentrl.tools.registry import ToolRegistry
from agentrl.tools.tool import tool
from agentrl.tools.sandbox.runner.loop import blocking, sandbox_loop
from agentrl.types import FunctionCall, ToolCall

@tool
def where() -> int:
    "Where am I?"
    return os.getpid()

async def beside():
    return os.getpid()

async def ask():
    calls = [ToolCall(id=str(n), function=FunctionCall(name="where")) for n in range(3)]
    messages = await asyncio.gather(*map(registry.run, calls))
    return {message.text for message in messages}

registry = ToolRegistry([where], timeout=30)
assert asyncio.run(ask()) == {str(os.getpid())}
assert blocking(beside()) == os.getpid()
child = os.fork()
if not child:
    answered, on_loop = asyncio.run(ask()), blocking(beside(), timeout=30)
    print(answered, on_loop, flush=True)
    os._exit(0 if answered == {str(os.getpid())} and on_loop == os.getpid() else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
def test_a_forked_child_runs_tools_in_threads_of_its_own() -> None:
    """Idle threads of the parent were taken for the child's: every call timed out, as the agent's failure."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Clumsy(agentrl.Env):
    """Its tool always fails."""

    splits = ("train",)

    def tasks(self, split: str = "train") -> list[dict[str, int]]:
        return [{"n": 1}]

    def reset(self, task: agentrl.Task, *, seed: int | None = None) -> str:
        return "call it"

    @agentrl.tool
    def fall(self) -> str:
        """Fall."""
        raise ValueError("fell")

    def expert(self, messages: Any) -> Any:
        return "I fell." if messages[-1].role == "tool" else self.call("fall")


@pytest.mark.slow
def test_an_error_of_a_tool_is_logged_without_our_exception_chain(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every traceback began with "RuntimeError: no running event loop", which nobody had asked about."""
    with caplog.at_level(logging.DEBUG, "agentrl"):
        agentrl.evaluate(Clumsy, policy="expert", run_dir=str(tmp_path / "run"))
    raised = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert raised
    assert [error.__context__ for error in raised if error] == [None] * len(raised)
