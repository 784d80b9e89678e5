"""The agent's tools: bash, an editor and submit, or bash alone; and an expert that knows how to use them."""

from __future__ import annotations

import base64
import difflib
import shlex
from collections.abc import Callable, Iterator
from typing import Any

from agentrl.envs.builtin.swe.changes import EXECUTABLE, LINK, REGULAR, Changes, File, Tree
from agentrl.envs.builtin.swe.limits import EpisodeLimits
from agentrl.envs.builtin.swe.prompts import SUBMIT, observation, submits
from agentrl.tools.sandbox import Sandbox
from agentrl.tools.sandbox.toolkit import Toolkit, shown
from agentrl.tools.tool import Tool, tool

Step = tuple[str, dict[str, Any]]
"""A tool's name and its arguments."""
MANY = 8
"""A file with more changed places than this is rewritten as a whole."""


class SweTools:
    """The tools of one episode.

    Args:
        limits: of a command's time and output.
        end: called when the work is submitted.
        bash_only: one command in each answer, each in a shell of its own.
    """

    def __init__(self, limits: EpisodeLimits, end: Callable[[], None], bash_only: bool) -> None:
        self._limits, self._end = limits, end
        self.toolkit = Toolkit(("bash", "edit"), timeout=limits.command_seconds, limit=limits.output_bytes)
        self.tools = [Tool.of(self.bash)] if bash_only else [*self.toolkit.tools, Tool.of(self.submit)]

    @tool(sandbox=True, model_errors=(ConnectionError, TimeoutError))
    async def bash(self, command: str, sandbox: Sandbox) -> str:
        """Run a command in a new shell in the repository. Directory and variables don't carry over.

        Args:
            command: the command line; it ends, with everything that it started, at its time limit.
            sandbox: where; the model does not see this.
        """
        result = await sandbox.exec(command, timeout=self._limits.command_seconds, limit=self._limits.output_bytes)
        if submits(result):
            self._end()
        return observation(result, shown(result))

    @tool(quick=True)
    def submit(self) -> str:
        """Hand in the working tree as it is now. Nothing can be done after it."""
        self._end()
        return "submitted"


def expert_steps(base: Tree, solution: Changes, bash_only: bool) -> list[Step]:
    """The calls that turn the repository into its solution, from a first look to the submission."""
    look = ("bash", {"command": "git log --oneline && git status --short && ls"})
    edits = [step for path, file in sorted(solution.items()) for step in _steps(path, base.get(path), file, bash_only)]
    return [look, *edits, end_step(bash_only)]


def end_step(bash_only: bool) -> Step:
    """The call that submits the work."""
    return ("bash", {"command": f"echo {SUBMIT}"}) if bash_only else ("submit", {})


def _steps(path: str, before: File | None, after: File | None, bash_only: bool) -> Iterator[Step]:
    if after is None:
        yield "bash", {"command": f"rm {shlex.quote(path)}"}
    elif after.mode == LINK:
        target = after.data.decode(errors="surrogateescape")
        yield "bash", {"command": f"ln -sfn {shlex.quote(target)} {shlex.quote(path)}"}
    else:
        if before is None or before.data != after.data:
            yield from _by_shell(path, after) if bash_only else _by_editor(path, before, after)
        if after.mode != (before.mode if before else REGULAR):
            yield "bash", {"command": f"chmod {'+x' if after.mode == EXECUTABLE else '-x'} {shlex.quote(path)}"}


def _by_shell(path: str, after: File) -> Iterator[Step]:
    where, text = shlex.quote(path), _text(after)
    folder = f"mkdir -p {shlex.quote(path.rpartition('/')[0])} && " if "/" in path else ""
    if text is None or not text.endswith("\n") or "\nEOF\n" in f"\n{text}":
        body = base64.b64encode(after.data).decode()
        yield "bash", {"command": f"{folder}echo {body} | base64 -d > {where}"}
    else:
        yield "bash", {"command": f"{folder}cat > {where} <<'EOF'\n{text}EOF"}


def _by_editor(path: str, before: File | None, after: File) -> Iterator[Step]:
    new = _text(after)
    if new is None:
        yield from _by_shell(path, after)
        return
    old = _text(before) if before is not None and before.mode != LINK else None
    places = list(_replacements(old, new)) if old else []
    if not places or len(places) > MANY:
        yield "edit", {"command": "create", "path": path, "text": new}
    for part, replacement in places if len(places) <= MANY else ():
        yield "edit", {"command": "str_replace", "path": path, "old": part, "new": replacement}


def _replacements(old: str, new: str) -> Iterator[tuple[str, str]]:
    """Changed lines with as much around them as makes them unique, so that one after the other can be replaced."""
    now = old
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    shift = 0
    for kind, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        lines = now.splitlines(keepends=True)
        a, b = a + shift, b + shift
        first, last = a, b
        while now.count("".join(lines[first:last])) != 1 or first == last:
            if first == 0 and last == len(lines):
                break
            first, last = max(0, first - 1), min(len(lines), last + 1)
        replacement = "".join([*lines[first:a], *after[c:d], *lines[b:last]])
        yield "".join(lines[first:last]), replacement
        now = "".join([*lines[:a], *after[c:d], *lines[b:]])
        shift += (d - c) - (b - a)


def _text(file: File) -> str | None:
    """A file's text, or None where an editor would not give it back byte for byte."""
    try:
        text = file.data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\r" in text or "\0" in text else text
