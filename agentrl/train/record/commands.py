"""The commands that go back to what a run recorded: `agentrl verify|replay|ratings`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from agentrl.common.terminal import out, print_lines
from agentrl.errors import require_extra

if TYPE_CHECKING:
    from agentrl.train.record.verify import Report

app = typer.Typer()
TRUST = typer.Option("--trust", help="Import the code that the run's settings name: it can do whatever you can.")


@app.command()
def verify(
    run: Annotated[Path, typer.Argument(help="A run's folder, or a chain's.")],
    weights: Annotated[
        bool, typer.Option("--weights", help="Also load the checkpoints into an engine, and compare its checksums.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Check a run's record: what was trained, under which weights, with what credit; 1 where it breaks.

    Of a chain: each stage's, and that each began with the weights that another one ended with.
    """
    from agentrl.train.record.chain import is_chain

    with require_extra("train"):
        from agentrl.train.record.verify import verify as verified
        from agentrl.train.record.verify import verify_chain
    if is_chain(run):
        whole = verify_chain(run, weights=weights, trust=trust)
        reports, report, passed = whole.stages, whole.whole, whole.passed
        lines, found = whole.lines(), whole.json()
    else:
        reports, report = {}, verified(run, weights=weights, trust=trust)
        passed, lines, found = report.passed, report.lines(), report.json()
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        for name, of_stage in reports.items():
            out.print(f"stage {escape(name)}")
            _show(of_stage, of_stage.lines())
        _show(report, lines)
    if not passed:
        raise typer.Exit(1)


def _show(report: Report, lines: Iterable[str]) -> None:
    """Print a table of checks, and lines below it."""
    table = Table("check", "what has to hold", "examined", "result", box=None)
    for row in report.rows():
        table.add_row(*map(escape, row))
    out.print(table)
    print_lines(lines)


@app.command()
def replay(
    session: Annotated[Path, typer.Argument(help="A run's folder and a session's id: runs/NAME/SESSION.")],
    words: Annotated[list[str] | None, typer.Argument(help="Settings as key=value.", show_default=False)] = None,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Play a session again from a turn: agentrl replay runs/NAME/SESSION turn=2; n=, seed=, model= are settings."""
    import asyncio

    from agentrl.overrides import parse_words, validate

    with require_extra("train"):
        from agentrl.train.record.replay import ReplayConfig
        from agentrl.train.record.replay import replay as replayed
    config = validate(parse_words(words or ()), ReplayConfig)
    playing = replayed(session.parent, session.name, config, lambda line: print_lines([line]), trust=trust)
    result = asyncio.run(playing)
    print_lines(result.lines())
    if config.seed is None and result.exact and not (result.replays[0].reproduced or result.replays[0].differences):
        raise typer.Exit(1)


@app.command()
def ratings(
    run: Annotated[Path, typer.Argument(help="A run's folder.")], trust: Annotated[bool, TRUST] = False
) -> None:
    """Show how a run's policy did against its earlier versions (policies.NAME=past): Elo ratings and win rates."""
    from agentrl.common.imports import names_only
    from agentrl.config import PAST
    from agentrl.errors import ConfigError
    from agentrl.train.driver.resuming import saved_settings
    from agentrl.train.record import ratings as rated

    with nullcontext() if trust else names_only():
        policies = saved_settings(run, "").policies.items()
    found = next(((name, policy.past.every) for name, policy in policies if policy.name == PAST), None)
    if found is None:
        raise ConfigError(f"{run} has no policies.NAME={PAST}: its policy plays against no earlier version of itself")
    name, every = found
    table = Table("learner", "Elo", f"points per game against {name}/VERSION", box=None)
    for row in rated.rows(rated.read(run), every):
        table.add_row(*row)
    out.print(table)
