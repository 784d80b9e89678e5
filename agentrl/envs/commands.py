"""The commands about environments and data sets: `agentrl envs|init|play|decontaminate`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

from agentrl.common.terminal import out, print_lines
from agentrl.errors import ConfigError

app = typer.Typer()
LISTED_TASKS = 3
"""Tasks of each environment that its agents play for the list of all."""
Words = Annotated[list[str] | None, typer.Argument(help="Settings as key=value.", show_default=False)]


@app.command()
def envs(words: Words = None) -> None:
    """List the environments, or play one with its expert, a random and a silent agent: agentrl envs env=NAME n=10.

    The list has the mean rewards that the expert and a random agent get in 3 tasks, measured as it is made, where an
    environment needs nothing besides agentrl.
    """
    from agentrl.overrides import parse_words

    tree = parse_words(words or ())
    if not tree:
        _list_environments()
        return
    subject, n = tree.pop("env", None), tree.pop("n", 10)
    if subject is None or tree or isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ConfigError("agentrl envs takes env=NAME, env.KEY=VALUE, and n=TASKS, a whole number above 0")
    options = dict(subject) if isinstance(subject, dict) else {"name": subject}
    _measure_environment(str(options.pop("name", "")), options, n)


def _list_environments() -> None:
    from agentrl.envs.check.reference import FEW, references
    from agentrl.envs.registry import list_envs

    table = Table(Column("name", no_wrap=True), "turns", "about", show_lines=True)
    for env in list_envs():
        played = references(env.name, {}, LISTED_TASKS, agents=FEW) if env.ready else []
        parts = {
            "tools": env.tools,
            "rewards": () if env.rewards is None else env.rewards or ("of steps",),
            "scores": [
                f"{each.agent.partition(' ')[0]} {each.reward:.2f}" for each in played if each.reward is not None
            ],
            "needs": (env.needs,) if env.needs else (),
            "outdated": (f"use {env.newer}",) if env.newer else (),
            "splits": env.splits,
            "options": [f"env.{option.name}" for option in env.options],
        }
        about = f"[red]{escape(env.error)}[/]" if env.error else escape(env.description)
        lines = [f"[dim]{key}:[/] {escape(', '.join(values))}" for key, values in parts.items() if values]
        expert = [] if env.expert or env.error else ["[dim]no expert[/]"]
        turns = "" if env.max_turns is None else str(env.max_turns)
        table.add_row(env.name, turns, "\n".join([about, *lines, *expert]))
    out.print(table)


def _measure_environment(name: str, options: dict[str, Any], n: int) -> None:
    from agentrl.envs.check.reference import references

    table = Table("agent", "mean reward", "mean turns", "failed calls", "episodes", title=escape(name))
    for each in references(name, options, n):
        reward = "none" if each.reward is None else f"{each.reward:.3f}"
        table.add_row(each.short, reward, f"{each.turns:.1f}", f"{each.tool_errors:.0%}", str(each.episodes))
    out.print(table)


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="The project's name, such as my-env.")],
    words: Words = None,
    parent: Annotated[Path, typer.Option("--in", help="The folder to make it in.")] = Path(),
    kind: Annotated[
        str | None, typer.Option(help="What you have: environment, questions, conversations or agent.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Your file or folder, or hf://OWNER/NAME; else an example.")] = None,
    model: Annotated[str | None, typer.Option(help="What is trained: tiny, a known name, or a folder.")] = None,
) -> None:
    """Make a project that trains, by three questions or by options: agentrl init my-env.

    kind=environment, the default where nobody can be asked, is an installable package with tests, data and a CI file.
    Other kinds get a file of settings, into which further words (key=value) go.
    """
    from dataclasses import replace

    from agentrl.envs.init.project import Project, ask_for, in_terminal, kind_of, write_project
    from agentrl.overrides import parse_words

    given = {"kind": kind, "data": data, "model": model}
    if in_terminal() and None in given.values():
        project = ask_for(
            name, given, lambda question, default: typer.prompt(question, default, show_default=bool(default))
        )
    else:
        project = Project(name, kind_of(kind or "environment"), data or "", model or "tiny")
    print_lines(write_project(replace(project, settings=parse_words(words or ())), parent))


@app.command()
def play(words: Words = None) -> None:
    """Play an episode yourself, with the tools that a model has: agentrl play env=NAME; the session is kept.

    task= (an index or an id), split=, seed=, player= (which agent you are), run_dir= (where the session goes);
    from=RUN_FOLDER session=ID plays a session again, turn by turn.
    """
    from agentrl.envs.play import game_of, play_in_terminal
    from agentrl.overrides import parse_words

    game = game_of(parse_words(words or ()))
    session = play_in_terminal(game, print_lines)
    rewards = ", ".join(f"{key} {value:g}" for key, value in session.rewards.items())
    score = "no reward" if session.score is None else f"reward {session.score:g}"
    why = f": {session.error}" if session.error else ""
    turns = "1 turn" if session.turns == 1 else f"{session.turns} turns"
    print_lines([f"{session.status}{why}; {score}{f' ({rewards})' if rewards else ''}, {turns}"])
    print_lines([f"the session is {session.id} in {game.folder}: agentrl view {shlex.quote(str(game.folder))}"])


@app.command()
def decontaminate(
    train: Annotated[Path, typer.Argument(help="A .jsonl, .json, .csv or .parquet file.")],
    against: Annotated[list[Path], typer.Option(help="A file of what it shall not overlap with; several: repeat it.")],
    column: Annotated[str, typer.Option(help="The column of the texts, in all files.")] = "question",
    words: Annotated[int, typer.Option(min=1, help="Words of a run that counts as an overlap.")] = 13,
    to: Annotated[Path | None, typer.Option("--out", help="Write the other rows into this new JSONL file.")] = None,
) -> None:
    """Count the rows of a data set that share a run of words with another; 1 where there are some, unless --out."""
    from agentrl.envs.data.overlap import Overlap
    from agentrl.envs.data.rows import read_rows

    def text(file: Path, number: int, row: dict[str, object]) -> str:
        if not isinstance(found := row.get(column), str):
            raise ConfigError(f"{file}, row {number}: no text in the column {column!r} (columns: {', '.join(row)})")
        return found

    if to is not None and to.exists():
        raise ConfigError(f"--out={str(to)!r} is there already")
    overlap = Overlap((text(file, number, row) for file in against for number, row in read_rows(file)), words)
    kept: list[tuple[int, dict[str, object]]] = []
    shared: list[tuple[int, dict[str, object]]] = []
    for number, row in read_rows(train):
        (shared if overlap.shared(text(train, number, row)) else kept).append((number, row))
    print_lines([f"{len(shared)} of {len(kept) + len(shared)} rows share a run of {words} words"])
    print_lines(f"row {number}: {str(row[column])[:100]}" for number, row in shared[:10])
    if to is not None:
        lines = (json.dumps(row, ensure_ascii=False, default=str) for _, row in kept)
        to.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        print_lines([f"{len(kept)} rows are in {to}"])
    elif shared:
        raise typer.Exit(1)
