"""The commands about suites: `agentrl eval suite=…`, `agentrl eval … compare=…`, `agentrl compare`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from agentrl.common.terminal import err, out, print_lines, print_part
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.overrides import Tree
    from agentrl.train.evaluation.suite.results import CompareConfig

app = typer.Typer()
NAME_WIDTH = 8
"""Columns that a part's name needs at least, before it goes on in the next line."""
WORSE = 3
"""The exit code where a policy is worse than its baseline; other failures end with 1, mistakes with 2."""


def evaluate_suite(tree: Tree, baseline: CompareConfig | None) -> None:
    """Measure a suite, print its table, and compare it where a baseline is given."""
    from agentrl.train.driver.api import run_evaluate_suite
    from agentrl.train.evaluation.suite.parts import read_suite
    from agentrl.train.evaluation.suite.report import result_lines, table

    suite = read_suite(str(tree.pop("suite")), tree)
    results = run_evaluate_suite(suite, owns_process=True)
    folder = results.path or Path()
    show_table(table(results))
    print_lines(result_lines(results))
    print_lines(
        [f"results: {folder} (result.json, result.md, result.png)", f"  agentrl view {shlex.quote(str(folder))}"]
    )
    if not results.worked:
        broken = ", ".join(name for name, part in results.parts.items() if not part["worked"])
        err.print(f"[red]error:[/] nothing worked in: {broken} (see the warnings)", soft_wrap=True)
        raise typer.Exit(1)
    against_baseline(folder, baseline)


def against_baseline(folder: Path, baseline: CompareConfig | None) -> None:
    """Compare the results in a folder with a baseline, and end with `WORSE` where they are worse."""
    if baseline is None:
        return
    if _print_comparison(baseline.name, folder, baseline.alpha, accept=baseline.accept_changed_data):
        raise typer.Exit(WORSE)


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(help="A result.json, or the folder of an evaluation or a suite.")],
    after: Annotated[Path, typer.Argument(help="Another one, of the same tasks.")],
    alpha: Annotated[float, typer.Option(help="The chance of calling equal policies different.")] = 0.05,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    accept_changed_data: Annotated[
        bool, typer.Option("--accept-changed-data", help="Compare the tasks that are the same where data changed.")
    ] = False,
) -> None:
    """Compare two results of agentrl eval task by task, by a paired test; 3 where the second is worse."""
    if not 0 < alpha < 1:
        raise ConfigError(f"--alpha={alpha}: must lie between 0 and 1")
    if _print_comparison(before, after, alpha, as_markdown, accept=accept_changed_data):
        raise typer.Exit(WORSE)


def show_table(found: Table, console: Console = out) -> None:
    """Print a table; where a terminal is too narrow for its numbers, or there is none, in lines as long as they are."""
    width = sum((column.min_width or NAME_WIDTH) + 1 for column in found.columns)
    print_part(found, console, fits=width <= console.width)


def _print_comparison(
    before: Any, after: Any, alpha: float, as_markdown: bool = False, *, accept: bool = False
) -> list[str]:
    """Print a comparison; the parts that are worse."""
    from agentrl.train.evaluation.suite import report
    from agentrl.train.evaluation.suite.compare import compare as compared
    from agentrl.train.evaluation.suite.results import read_results

    found = compared(read_results(before), read_results(after), alpha, accept_changed_data=accept)
    if as_markdown:
        typer.echo(report.comparison_markdown(found), nl=False)
    else:
        show_table(report.comparison_table(found))
        print_lines(report.comparison_lines(found))
    if found.worse:
        err.print(f"worse than the baseline: {', '.join(found.worse)}", markup=False, soft_wrap=True)
    return found.worse
