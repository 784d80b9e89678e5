"""The commands that look at runs: `agentrl view|top|sessions|diff|report`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from agentrl.common.scratch import write_folder
from agentrl.common.terminal import err, out, print_lines, print_part
from agentrl.errors import ConfigError

app = typer.Typer()
MOST = 10**9
"""Sessions that a store may have."""
RunFolder = Annotated[Path, typer.Argument(help="A run's folder.")]


@app.command()
def view(
    path: Annotated[Path, typer.Argument(help="A folder with runs in it, or a run's folder.")] = Path("runs"),
    words: Annotated[list[str] | None, typer.Argument(help="Settings as key=value.", show_default=False)] = None,
) -> None:
    """Look at runs, curves and sessions in a browser: agentrl view runs/; host=, port=, token=, hosts= are settings."""
    import asyncio

    from agentrl.overrides import parse_words, validate
    from agentrl.viewer.serve import ViewConfig
    from agentrl.viewer.serve import view as serve_viewer

    config = validate(parse_words(words or ()), ViewConfig)
    asyncio.run(serve_viewer(path, config, lambda url: print_lines([f"the viewer is at {url}"])))


@app.command()
def top(path: RunFolder) -> None:
    """Follow a run until it ends, or Ctrl-C, which ends nothing but this; a line for each step without a terminal."""
    from agentrl.viewer.attach import attach_all

    with contextlib.suppress(KeyboardInterrupt):
        attach_all(path, out)


@app.command()
def sessions(
    path: Annotated[Path, typer.Argument(help="A run's folder, or a session store.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Filters: status=truncated step=40..50 score=..0.5 task~=text trained=41.", show_default=False
        ),
    ] = None,
    worst: Annotated[
        int | None, typer.Option(min=1, help="Those with the lowest scores; demonstrations by phase=demo.")
    ] = None,
    best: Annotated[int | None, typer.Option(min=1, help="Those with the highest scores.")] = None,
    grep: Annotated[str, typer.Option(help="Those with this text in a message or a tool call.")] = "",
    sort: Annotated[str | None, typer.Option(help="Largest first by a column, or by reward/NAME.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, max=MOST, help="How many: 20, or all with --export.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object for each, one a line.")] = False,
    export: Annotated[Path | None, typer.Option(help="Write them whole into this file: .jsonl or .parquet.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print messages of sessions under way until the run ends.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Hold every row against its checksum; 1 if one differs.")
    ] = False,
    salvage: Annotated[Path | None, typer.Option(help="Write the undamaged sessions into this new store.")] = None,
) -> None:
    """A session store's sessions, also under way (--follow); checks for damage (--check, --salvage)."""
    from agentrl.viewer.listing import Order, filters, json_lines, list_phases, matching, table
    from agentrl.viewer.listing import export as write
    from agentrl.viewer.runs import stage_at

    path = stage_at(path)
    file = path / "sessions.db" if path.is_dir() else path
    if check or salvage is not None:
        return _check(file, salvage)
    if follow:
        return _follow(path, words or ())
    if not file.is_file():
        raise ConfigError(f"{str(file)!r}: no such file; give a session store (sessions.db) or a run's folder")
    if sum(chosen is not None for chosen in (worst, best, sort)) > 1:
        raise ConfigError("--worst, --best and --sort are three orders; give one of them")
    wanted = filters(file, words or ())
    if not (words or worst or best or sort or grep or as_json or export):
        return print_lines([_count(file)])
    column = "score" if worst or best else sort
    if (worst or best) and "phase" not in wanted:
        wanted = {**wanted, "phase": list_phases(file)}
    most = worst or best or limit or (20 if export is None else MOST)
    order = Order(column, worst is None and column is not None, most)
    with err.status("searching") as status:
        rows = matching(file, wanted, order, grep, lambda done: status.update(f"searching: {done:,} sessions"))
    if export is not None:
        write(file, rows, export)
        return print_lines([f"{len(rows)} sessions are in {export}"])
    if as_json:
        return print_lines(json_lines(rows))
    print_part(table(rows) if rows else "no session fits")


def _follow(path: Path, words: Iterable[str]) -> None:
    from agentrl.viewer.following import follow
    from agentrl.viewer.listing import filters
    from agentrl.viewer.runs import run_at

    run = run_at(path)
    with contextlib.suppress(KeyboardInterrupt):
        for line in follow(run, filters(run.database, words)):
            print_lines([line])


def _count(file: Path) -> str:
    """The number of a store's sessions, and how they ended."""
    from agentrl.sessions.store.store import Store

    with Store(file, read_only=True) as store:
        ended = store.counts()
    said = ", ".join(f"{count} {status}" for status, count in sorted(ended.items()))
    return f"{sum(ended.values())} sessions{': ' if said else ''}{said}"


def _check(file: Path, salvage: Path | None) -> None:
    from agentrl.sessions.store import salvage as salvaging

    report = salvaging.check(file, salvage)
    print_lines(report.lines())
    if salvage is not None:
        print_lines([f"{len(report.undamaged)} sessions are in {salvage}"])
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def edit_score(
    session: Annotated[Path, typer.Argument(help="An evaluation's folder and a session's id: runs/NAME/SESSION.")],
    score: Annotated[float | None, typer.Argument(help="The new score; without it the edits are shown.")] = None,
    why: Annotated[str, typer.Option(help="The reason, for the history.")] = "",
    who: Annotated[str | None, typer.Option(help="Who changes it; you by default.")] = None,
) -> None:
    """Change a score of an evaluation, with a history: agentrl edit-score runs/NAME/SESSION 1 --why …."""
    from agentrl.rollout.episodes import edits

    if score is not None:
        edits.add(session.parent, session.name, score, why, who)
    else:
        edits.require_session(session.parent, session.name)
    found = [edit for edit in edits.read(session.parent) if edit.session == session.name]
    print_lines([str(edit) for edit in found] or ["nobody changed its score"])


@app.command()
def diff(first: RunFolder, second: RunFolder) -> None:
    """Show differences between two runs: settings, metrics, learning curves, and tasks whose mean score changed.

    Of two chains: between the stages of each name.
    """
    from agentrl.viewer.difference import differences
    from agentrl.viewer.runs import run_at, stage_pairs

    for title, one, other in stage_pairs(first, second):
        print_lines([title] if title else [])
        if one is not None and other is not None:
            for part in differences(run_at(one), run_at(other), out.width):
                print_part(part)


@app.command()
def report(
    path: RunFolder,
    to: Annotated[Path | None, typer.Option("--out", help="The file, or the folder of --all.")] = None,
    whole: Annotated[bool, typer.Option("--all", help="A folder of pages with every session, whole.")] = False,
) -> None:
    """Write a run into HTML to share: summary, health, curves, some sessions (--all: every one), no secret settings."""
    from agentrl.train.record.files import write_atomically
    from agentrl.viewer.report import pages
    from agentrl.viewer.report import report as page
    from agentrl.viewer.runs import run_at

    target = to or path / ("report" if whole else "report.html")
    try:
        if whole:
            with err.status("writing") as status:
                count = _write_pages(target, pages(run_at(path)), lambda done: status.update(f"{done:,} pages"))
            return print_lines([f"{count:,} pages are in {target}, the first is {target / 'index.html'}"])
        write_atomically(target, page(run_at(path)))
    except OSError as error:
        raise ConfigError(f"--out={str(target)!r}: can't write there: {error.strerror}") from None
    print_lines([f"the report is in {target}"])


def _write_pages(folder: Path, pages: Iterable[tuple[str, bytes]], told: Callable[[int], object]) -> int:
    """Write pages into a folder, in place of those of an earlier report; returns how many."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "index.html").is_file():
        raise ConfigError(f"--out={str(folder)!r}: it has files that are no report; give a new or an empty folder")
    count = 0
    with write_folder(folder) as beside:
        (beside / "sessions").mkdir()
        for name, content in pages:
            (beside / name).write_bytes(content)
            told(count := count + 1)
    return count
