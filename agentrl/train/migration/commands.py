"""The commands `agentrl convert data|settings`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrl.common.terminal import print_lines

app = typer.Typer(help="Data and settings of slime, verl, TRL and others: make them run here.", no_args_is_help=True)


@app.command()
def data(
    path: Annotated[str, typer.Argument(help="A file, a folder of files, or hf://OWNER/NAME.")],
    out: Annotated[Path, typer.Argument(help="The JSONL file to write.")],
    kind: Annotated[
        str | None,
        typer.Option("--as", help="What rows are: questions, conversations, pairs, verdicts or repositories."),
    ] = None,
    grading: Annotated[str | None, typer.Option(help="How answers are compared: math, exact, choice.")] = None,
    strings: Annotated[str | None, typer.Option(help="What texts of prompts are: chat or plain.")] = None,
) -> None:
    """Write the rows that a run reads into a new file, and say row by row why others can't be; 1 if none can."""
    from agentrl.train.migration.convert import convert_file, options, runs_as_it_is
    from agentrl.train.migration.rows import RowReader

    if as_it_is := runs_as_it_is(path):
        return print_lines([as_it_is])
    converted = convert_file(path, out, RowReader(**options(kind, grading, strings)))
    print_lines(converted.lines())
    if not converted.carried:
        raise typer.Exit(1)


@app.command()
def settings(script: Annotated[Path, typer.Argument(help="A script that starts slime or verl.")]) -> None:
    """Say what the flags of slime's, or the dotted settings of verl's, are here: agentrl convert settings run.sh."""
    from agentrl.train.migration.scripts import translated

    print_lines(translated(script))
