"""A stateful Python interpreter: one process in the sandbox, a cell at a time.

The interpreter reports a cell's end on descriptor 3, with the cell's nonce; it is closed in the cell's subprocesses,
and printed text can't be mistaken for it. Code in the same process can tamper with its own interpreter, but only its
own output depends on that: whether the process is alive and how it ended is known from the runner. A cell that takes
too long, as the sandbox counts its time (`Sandbox.exec`), is interrupted (KeyboardInterrupt, the variables survive)
and, if that does not help, killed, which the result says.
"""

from __future__ import annotations

import json
import secrets
import signal
from dataclasses import replace
from typing import Protocol, runtime_checkable

from agentrl.tools.sandbox.base import Command, ExecResult, Outcome, Process

DRIVER = r"""
import ast, json, os, signal, sys, traceback, types
cells = os.fdopen(os.dup(0), "rb"); report = os.dup(3)
os.set_inheritable(cells.fileno(), False); os.set_inheritable(report, False); os.close(3)
null = os.open(os.devnull, os.O_RDONLY); os.dup2(null, 0); os.close(null)
ours = sys.modules["__main__"]  # it lives on; cells have a module of their own, and no name of this program in it
sys.modules["__main__"] = types.ModuleType("__main__"); space = sys.modules["__main__"].__dict__
space["__builtins__"] = __builtins__
sys.argv = [""]; sys.path.insert(0, "")
def run(code):
    tree = ast.parse(code, "<cell>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), space)
    if last is not None:
        sys.displayhook(eval(compile(ast.Expression(last.value), "<cell>", "eval"), space))
for line in cells:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    cell = json.loads(line); failed = 1
    try:
        run(cell["code"]); failed = 0
    except SystemExit as error:
        print("SystemExit:", error.code, file=sys.stderr)
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != "<cell>":
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        try: stream.flush()
        except Exception: pass
    os.write(report, b"%s %d\n" % (cell["nonce"].encode(), failed))
"""
INTERRUPT_SECONDS = 2.0
"""Seconds for an interrupted cell to end."""


@runtime_checkable
class InteractiveProcess(Process, Protocol):
    """A background process that can be written to and signalled, and that reports on its descriptor 3."""

    async def signal(self, number: int) -> None:
        """Signal the process group; 9 kills the whole tree."""

    async def request(self, data: bytes, mark: bytes, timeout: float) -> tuple[bytes, ExecResult] | None:
        """Write to its input and wait for the report that begins with `mark`; see `ResidentProcess.request`."""

    async def wait_for_report(self, mark: bytes, timeout: float) -> tuple[bytes, ExecResult] | None:
        """Wait longer for a report that did not come within `request`'s timeout; None at the process's end, too."""


@runtime_checkable
class InteractiveSandbox(Protocol):
    """A sandbox with such processes: one with a resident runner, here or on a server."""

    async def connect(self, command: Command) -> InteractiveProcess:
        """Start an interactive process, and return it."""


class Interpreter:
    """A Python process in a sandbox; started at the first cell.

    Args:
        sandbox: where it runs.
        interrupt_timeout: seconds for an interrupted cell to end.
    """

    def __init__(self, sandbox: InteractiveSandbox, *, interrupt_timeout: float = INTERRUPT_SECONDS) -> None:
        self._sandbox = sandbox
        self._interrupt_timeout = interrupt_timeout
        self._process: InteractiveProcess | None = None

    async def run(self, code: str, *, timeout: float = 30.0) -> ExecResult:
        """Run a cell; the value of a last expression is shown, as at a prompt.

        Returns:
            Its output; the exit code is 1 where it raised, and the outcome TIMEOUT where it was stopped, with
            `detail` saying whether the variables survived.

        Raises:
            SandboxError: the sandbox failed.
        """
        process = self._process
        if process is None or not process.running:
            process = self._process = await self._sandbox.connect(["python3", "-u", "-c", DRIVER])
        nonce = secrets.token_hex(8)
        request = json.dumps({"nonce": nonce, "code": code}).encode() + b"\n"
        answer = await process.request(request, nonce.encode(), timeout)
        if answer is None and process.running:
            return await self._interrupt(process, nonce)
        if answer is None:
            return await self._make_result(process)
        report, shown = answer
        return _cell(shown, Outcome.EXITED, 0 if report == f"{nonce} 0\n".encode() else 1)

    async def _interrupt(self, process: InteractiveProcess, nonce: str) -> ExecResult:
        await process.signal(signal.SIGINT)
        answer = await process.wait_for_report(nonce.encode(), self._interrupt_timeout)
        if answer is not None:
            return _cell(answer[1], Outcome.TIMEOUT, 124, "interrupted; variables are still there")
        self._process = None
        ended = await process.stop()
        return _cell(ended, Outcome.TIMEOUT, 124, "killed; the interpreter starts anew, without its variables")

    async def _make_result(self, process: InteractiveProcess) -> ExecResult:
        self._process = None
        ended = await process.wait(5.0)
        detail = ended.detail or "the interpreter ended; it starts anew, without its variables"
        return _cell(ended, ended.outcome, ended.exit_code or 1, detail)

    async def close(self) -> None:
        """End the process; the next cell starts another."""
        if self._process is not None and self._process.running:
            await self._process.stop()
        self._process = None


def _cell(shown: ExecResult, outcome: Outcome, code: int, detail: str = "") -> ExecResult:
    return replace(shown, outcome=outcome, exit_code=code, detail=detail)
