"""Subjects of `agentrl check` and `agentrl bench`: conformance suites by kind, benchmarks by name."""

from __future__ import annotations

import ast
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from agentrl.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from agentrl.envs.check import CheckProgress, Finding, Measured, Note, Scores

Check = Callable[..., bool]
"""(name, options, where to print, the check's own settings by keyword) -> whether the contract is kept."""
QUIET_SECONDS = 5.0
"""A call of an environment's that takes longer is reported, repeatedly."""


def check_environment(name: str, options: dict[str, Any], out: Console, **settings: Any) -> bool:
    """The environment's contract, rule by rule, as docs/check.md lists them."""
    from agentrl.envs.check import LIMIT, SCORED, SECONDS, check_env

    numbers: dict[str, Any] = {
        "tasks": 3,
        "seed": 0,
        "limit": LIMIT,
        "hostile": None,
        "scored": SCORED,
        "seconds": SECONDS,
    }
    rewards = settings.pop("rewards", {})
    for key, value in settings.items():
        if key not in numbers:
            raise unknown_name("setting of check env=…", key, [*numbers, "rewards"])
        fraction = key in ("limit", "seconds")
        if isinstance(value, bool) or not isinstance(value, (int, float) if fraction else int):
            raise ConfigError(f"{key} = {value!r}: must be a {'number' if fraction else 'whole number'}")
    status = out.status("starting")
    try:
        findings = check_env(
            name, options=options, rewards=rewards, report=_Shown(out, status), **{**numbers, **settings}
        )
    finally:
        status.stop()
    if findings:
        number = f"{len(findings)} finding{'s' if len(findings) > 1 else ''}"
        out.print(
            f"[red]✗[/] {escape(name)}: {number}; docs/check.md says what each rule proves",
            highlight=False,
            soft_wrap=True,
        )
    else:
        out.print(f"[green]✓[/] {escape(name)} keeps the environment contract", highlight=False)
    return not findings


class _Shown:
    """Prints each rule with its findings, and what is running."""

    def __init__(self, out: Console, status: Status) -> None:
        self.out, self.status = out, status
        self._faults, self._next = 0, QUIET_SECONDS

    def __call__(self, event: Finding | Measured | Note | CheckProgress | Scores) -> None:
        from agentrl.envs.check import Finding, Measured, Note, Scores

        self.status.start()  # its thread begins only now: a process that has threads forks locks that nobody releases
        if isinstance(event, Finding):
            self._faults += 1
            self.out.print(f"[red]✗[/] {escape(event.rule)}: {escape(event.message)}", highlight=False, soft_wrap=True)
            if event.fix:
                self.out.print(f"    [dim]→[/] {escape(event.fix)}", highlight=False, soft_wrap=True)
        elif isinstance(event, Note):
            self.out.print(f"[yellow]![/] {escape(str(event))}", highlight=False, soft_wrap=True)
        elif isinstance(event, Measured | Scores):
            self.out.print(f"[dim]{event}[/]", highlight=False, soft_wrap=True)
        elif event.done:
            if not self._faults:
                self.out.print(f"[green]✓[/] {event.rule}: {escape(event.proves)}", highlight=False, soft_wrap=True)
            self._faults, self._next = 0, QUIET_SECONDS
        else:
            self.status.update(f"{event.rule}: {escape(event.doing or event.proves)}")
            if event.seconds > self._next:
                words = f"{event.rule}: {event.doing} has not returned for {event.seconds:.0f} s"
                self.out.print(f"[yellow]…[/] {escape(words)}", highlight=False, soft_wrap=True)
                self._next += QUIET_SECONDS
            elif event.seconds < QUIET_SECONDS:
                self._next = QUIET_SECONDS


def check_format(name: str, options: dict[str, Any], out: Console) -> bool:
    """A model's conversation format: is its template append-only, where does ours differ, which parser fits."""
    from agentrl.models import resolve
    from agentrl.sessions.renderers.proof.check import ON_PURPOSE, as_table, check_renderer

    path = Path(name) if Path(name).exists() else resolve(name)
    stop = str(options.pop("stop", ""))
    if options:
        others = ", ".join(f"renderer.{key}" for key in options)
        raise ConfigError(f"check renderer takes a model and renderer.stop, not {others}")
    rows = check_renderer(path, stop=stop)
    out.print(as_table(rows, name))
    faults, wanted = [row for row in rows if row.ok is False], [row for row in rows if row.answer == ON_PURPOSE]
    if faults:
        out.print(
            f"[red]✗[/] {escape(name)}: {len(faults)} of {len(rows)} checks failed", highlight=False, soft_wrap=True
        )
    else:
        beside = f", and differs on purpose in {len(wanted)} kinds of conversation" if wanted else ""
        out.print(
            f"[green]✓[/] {escape(name)} can be trained with this renderer{beside}", highlight=False, soft_wrap=True
        )
    return not faults


def check_backend(name: str, options: dict[str, Any], out: Console) -> bool:
    """A sandbox backend's contract, rule by rule."""
    from agentrl.tools.sandbox.commands import check_sandbox

    return check_sandbox(name, options, out)


CHECKS: dict[str, Check] = {"env": check_environment, "renderer": check_format, "sandbox": check_backend}
"""Conformance suites by their name in `agentrl check`."""


def run_benchmark(name: str | None, out: Console) -> None:
    """Run a benchmark of the source checkout, or list them.

    Raises:
        ConfigError: this is an installed package without its benchmarks.
        UnknownName: there is none of that name.
    """
    folder = Path(__file__).resolve().parents[1] / "benchmarks"
    found = {path.stem: path for path in sorted(folder.glob("*.py")) if "__main__" in path.read_text()}
    if not found:
        raise ConfigError("the benchmarks are in the source checkout (benchmarks/), not in the installed package")
    if name is None:
        table = Table("name", "what it measures")
        for key, path in found.items():
            table.add_row(key, escape((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]))
        out.print(table)
        return
    if name not in found:
        raise unknown_name("benchmark", name, found)
    sys.path.insert(0, str(folder.parent))
    sys.argv = [name]
    runpy.run_module(f"benchmarks.{name}", run_name="__main__")
