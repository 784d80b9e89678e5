"""The built-in tools of an agent that works in a sandbox: bash, python, an editor, submit.

They are methods marked with `@tool(sandbox=True)`, so the registry that runs them (`ToolRegistry(sandbox=provider)`)
passes the episode's sandbox to each call, as to a user's own tool. One `Toolkit`
serves one episode: it holds the shell's and the interpreter's state and what was submitted.
"""

from __future__ import annotations

import io
import secrets
import shlex
from collections.abc import Callable, Iterable
from typing import Any, Literal

from agentrl.errors import SandboxError, StateUnsupported, ToolError, unknown_name
from agentrl.tools.sandbox.base import ExecResult, Outcome, Sandbox
from agentrl.tools.sandbox.runner.interpreter import INTERRUPT_SECONDS, InteractiveSandbox, Interpreter
from agentrl.tools.tool import Tool, tool

_BASH = r"""
__agentrl_save() {
  { builtin declare -p; builtin alias -p; builtin shopt -p; builtin set +o; builtin printf 'cd -- %q\n' "$PWD"
    builtin declare -f; } >"$1.new" 2>/dev/null && command mv -f "$1.new" "$1" 2>/dev/null
}
[ -r "$2" ] && . "$2" >/dev/null 2>&1
__agentrl_state=$2
trap '__agentrl_save "$__agentrl_state"' EXIT
eval "shift 2
$1"
"""
_POSIX = r"""
[ -r "$2" ] && . "$2" >/dev/null 2>&1
__agentrl_state=$2
trap '{ set; export -p; command printf "cd -- \"%s\"\n" "$PWD"; } >"$__agentrl_state" 2>/dev/null' EXIT
eval "shift 2
$1"
"""
# Functions come last, and builtins by name: a command may define functions called `declare`, `cd` or `set`.
# $1 is the command and $2 the state's file; the command itself sees no arguments. Bash reports read-only variables that
# can't be set again, and continues.


class Shell:
    """A shell whose working directory, variables, functions and options carry over from command to command.

    Each command runs in a shell process of its own, which loads the state from a file in the sandbox (which commands
    may change) and saves it there at its end. So a command's end and exit code are those of a real process, known from
    the kernel; there is no prompt, no end marker and nothing else in the output that a command could forge. Given up:
    jobs don't outlive their command (background processes have `Sandbox.start`), and a shell killed at its timeout does
    not change the state.

    Args:
        sandbox: where it runs.
        file: the state's file; None is a new one.
        bash: whether to try bash, before sh.
    """

    def __init__(self, sandbox: Sandbox, *, file: str | None = None, bash: bool = True) -> None:
        self._sandbox = sandbox
        self.file = file or f"/tmp/.agentrl-shell-{secrets.token_hex(4)}"
        self.bash = bash

    async def run(self, command: str, *, timeout: float | None = None, limit: int | None = None) -> ExecResult:
        """Run a command line in the state of the earlier ones.

        Raises:
            SandboxError: the sandbox failed, not the command.
        """
        program, text = ("bash", _BASH) if self.bash else ("sh", _POSIX)
        result = await self._sandbox.exec(
            [program, "-c", text, program, command, self.file], timeout=timeout, limit=limit
        )
        if self.bash and result.outcome is Outcome.NOT_STARTED and result.exit_code == 127:
            self.bash = False
            return await self.run(command, timeout=timeout, limit=limit)
        return result


Edit = Literal["view", "create", "str_replace", "insert"]
VIEW_LINES = 2000
FILE_BYTES = 16 << 20
"""The size from which a file is not edited."""


class Toolkit:
    """The tools of one episode.

    Args:
        names: which of bash, python, edit and submit to offer.
        timeout: seconds of one command or cell; keep it below the registry's own limit.
        limit: bytes kept of each of a command's outputs.
        interrupt_timeout: seconds that a cell at its time limit has to end, once it is interrupted.

    Attributes:
        submitted: the answer given to `submit`; None until then.
    """

    def __init__(
        self,
        names: Iterable[str] = ("bash", "edit", "submit"),
        *,
        timeout: float = 25.0,
        limit: int = 16 << 10,
        interrupt_timeout: float = INTERRUPT_SECONDS,
    ) -> None:
        known: dict[str, Callable[..., Any]] = {
            "bash": self.bash,
            "python": self.python,
            "edit": self.edit,
            "submit": self.submit,
        }
        self.names = tuple(names)
        for name in self.names:
            if name not in known:
                raise unknown_name("sandbox tool", name, known)
        self.tools = [Tool.of(known[name]) for name in self.names]
        self.timeout = timeout
        self.submitted: str | None = None
        self._limit = limit
        self._interrupt_timeout = interrupt_timeout
        self._shell: tuple[str, Shell] | None = None
        self._shell_options: dict[str, Any] = {}
        self._python: tuple[str, Interpreter] | None = None

    def state(self) -> dict[str, Any]:
        """The tools' state outside the sandbox's files, as plain data.

        Raises:
            StateUnsupported: the python tool was used, whose variables are in a process.
        """
        if self._python is not None:
            raise StateUnsupported(
                "the variables of the python tool are in a process, which a snapshot does not contain"
            )
        shell = self._shell[1] if self._shell else None
        options = {"file": shell.file, "bash": shell.bash} if shell else self._shell_options
        return {"shell": options, "submitted": self.submitted}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned, in a sandbox with the restored files."""
        self._shell_options, self.submitted = state["shell"], state["submitted"]

    @tool(sandbox=True, model_errors=(ConnectionError, TimeoutError))
    async def bash(self, command: str, sandbox: Sandbox) -> str:
        """Run a command in a shell. The working directory and variables carry over from call to call.

        Args:
            command: the command line; it ends, with everything that it started, at its time limit.
            sandbox: where; the model does not see this.
        """
        if self._shell is None or self._shell[0] != sandbox.id:
            self._shell = sandbox.id, Shell(sandbox, **self._shell_options)
        return show_result(await self._shell[1].run(command, timeout=self.timeout, limit=self._limit))

    @tool(sandbox=True, model_errors=(ConnectionError, TimeoutError))
    async def python(self, code: str, sandbox: Sandbox) -> str:
        """Run Python code. Variables carry over from call to call; the value of a last expression is shown.

        Args:
            code: the code to run.
            sandbox: where; the model does not see this.
        """
        if not isinstance(sandbox, InteractiveSandbox):
            raise SandboxError("the python tool needs a sandbox with a resident runner")
        if self._python is None or self._python[0] != sandbox.id:
            self._python = sandbox.id, Interpreter(sandbox, interrupt_timeout=self._interrupt_timeout)
        return show_result(await self._python[1].run(code, timeout=self.timeout))

    @tool(sandbox=True, model_errors=(ConnectionError, TimeoutError))
    async def edit(
        self,
        command: Edit,
        path: str,
        sandbox: Sandbox,
        text: str | None = None,
        old: str | None = None,
        new: str | None = None,
        line: int | None = None,
        end_line: int | None = None,
    ) -> str:
        """View, create or change a text file.

        Args:
            command: view (a file with line numbers, or a directory), create (a whole file, from text), str_replace
                (old, which must occur exactly once, by new), insert (text after a line; 0 is before the first).
            path: the file.
            text: what to write, for create and insert.
            old: what to replace, for str_replace.
            new: what to put there, for str_replace; nothing deletes it.
            line: the first line to view, or the line to insert after.
            end_line: the last line to view.
            sandbox: where; the model does not see this.
        """
        if command == "view":
            return await _view(sandbox, path, line or 1, end_line)
        if command == "create":
            await sandbox.write(path, _require(text, "text", command))
            return f"wrote {path}"
        before = (await _read(sandbox, path)).decode(errors="surrogateescape")
        text, old, new = (_end_as(before, each) for each in (text, old, new))
        if command == "str_replace":
            after, place = _replace(before, _require(old, "old", command), new or "", path)
        else:
            after, place = _insert(before, _require(text, "text", command), line)
        await sandbox.write(path, after.encode(errors="surrogateescape"))
        last = place + (new or text or "").count("\n") + 3
        return f"changed {path}:\n{_number_lines(after, max(1, place - 3), last)}"

    @tool(sandbox=True, model_errors=(ConnectionError, TimeoutError))
    async def submit(self, sandbox: Sandbox, answer: str = "") -> str:
        """Hand in the work as it is now. Nothing can be done after it.

        Args:
            answer: the answer in words, where one was asked for.
            sandbox: where; the model does not see this.
        """
        self.submitted = answer
        return "submitted"


def show_result(result: ExecResult) -> str:
    """A result as a model reads it: its output, then how it ended where that is not plain success."""
    text = result.text()
    notes = {
        Outcome.TIMEOUT: f"[stopped at the time limit, with everything it started{_also(result.detail)}]",
        Outcome.MEMORY: "[killed: out of memory]",
        Outcome.SIGNALED: f"[killed by signal {result.exit_code - 128}{_also(result.detail)}]",
        Outcome.NOT_STARTED: f"[not started: {result.detail or 'no such command'}]",
    }
    note = notes.get(result.outcome) or (f"[exit code {result.exit_code}]" if result.exit_code else "")
    return "\n".join(part for part in (text, note) if part)


def _also(detail: str) -> str:
    return f"; {detail}" if detail else ""


def _require(value: str | None, name: str, command: str) -> str:
    if value is None:
        raise ToolError(f"{command} needs {name!r}")
    return value


async def _view(sandbox: Sandbox, path: str, first: int, last: int | None) -> str:
    if first < 1 or (last is not None and last < first):
        raise ToolError(f"lines {first} to {last}: the first is 1, and the last is not before it")
    found = await sandbox.exec(f"[ -d {shlex.quote(path)} ] && ls -Ap -- {shlex.quote(path)}")
    if found.ok:
        return found.text() or "(an empty directory)"
    text = (await _read(sandbox, path)).decode(errors="replace")
    return _number_lines(text, first, last or first + VIEW_LINES - 1) or "(an empty file)"


async def _read(sandbox: Sandbox, path: str) -> bytes:
    """A file's content; ToolError where it is larger than is read, of which the rest would be lost in writing."""
    data = await sandbox.read(path, limit=FILE_BYTES)
    if len(data) == FILE_BYTES:
        raise ToolError(f"{path} has {FILE_BYTES:,} bytes or more: view or change it by a command")
    return data


def _end_as(before: str, text: str | None) -> str | None:
    """A text with its lines ended as those of a file; `view` does not show which way that is."""
    if text is None or before.count("\n") != before.count("\r\n") or "\n" not in before:
        return text
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _lines(text: str) -> list[str]:
    """The lines with their ends, as `wc`, `grep -n` and `sed` count them; `str.splitlines` divides at others too."""
    return list(io.StringIO(text, newline="\n"))


def _number_lines(text: str, first: int, last: int) -> str:
    lines = [line.rstrip("\r\n") for line in _lines(text)]
    if first > max(1, len(lines)):
        raise ToolError(f"line {first} is past the end: the file has {len(lines)} lines")
    chosen = lines[first - 1 : last]
    rest = f"\n[... {len(lines) - last} more lines]" if len(lines) > last else ""
    return "\n".join(f"{first + index:6}\t{line}" for index, line in enumerate(chosen)) + rest


def _replace(before: str, old: str, new: str, path: str) -> tuple[str, int]:
    count = before.count(old) if old else 0
    if count != 1:
        where = [str(before[:i].count("\n") + 1) for i in _places(before, old)]
        hint = f" (lines {', '.join(where[:10])}): give more of what is around it" if count else ""
        raise ToolError(f"'old' occurs {count} times in {path}{hint}; it must occur exactly once")
    at = before.index(old)
    return before[:at] + new + before[at + len(old) :], before[:at].count("\n") + 1


def _places(text: str, part: str) -> Iterable[int]:
    at = text.find(part) if part else -1
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _insert(before: str, text: str, line: int | None) -> tuple[str, int]:
    lines, end = _lines(before), _end_as(before, "\n") or "\n"
    if line is None or not 0 <= line <= len(lines):
        raise ToolError(f"insert needs 'line' between 0 and {len(lines)}, not {line}")
    if line and not lines[line - 1].endswith("\n"):
        lines[line - 1] += end
    lines.insert(line, text if text.endswith("\n") else text + end)
    return "".join(lines), line + 1
