"""`agentrl search-r1 prepare`: data for `env=search_r1`; `agentrl search-r1 compare`: results beside the published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from agentrl.errors import ConfigError

app = typer.Typer(help="Search-R1: its data and its published results.", no_args_is_help=True)


@app.command()
def prepare(
    squad: Annotated[Path, typer.Argument(help="A file in SQuAD 2.0's format: its paragraphs become the corpus.")],
    out: Annotated[Path | None, typer.Option(help="The data folder; env.data's default by default.")] = None,
    words: Annotated[
        int | None, typer.Option(min=1, help="Split paragraphs into passages of at most this many words.")
    ] = None,
    two_hops: Annotated[
        bool, typer.Option("--two-hops", help="Add questions that need the answer of another one.")
    ] = False,
    gaps: Annotated[
        int,
        typer.Option(min=0, help="Add up to so many questions for a gap in a sentence of each passage."),
    ] = 0,
) -> None:
    """Write corpus, questions and the BM25 index that env=search_r1 uses."""
    from agentrl.envs.builtin.search_r1.data import FOLDER
    from agentrl.envs.builtin.search_r1.squad import choose_demonstrations, prepare_squad
    from agentrl.retrieval.index import build

    folder = (out or FOLDER).expanduser()
    passages, train, held_out = prepare_squad(squad, folder, words, hops=two_hops, gaps=gaps)
    build(folder / "corpus.jsonl", folder / "bm25")
    demos = choose_demonstrations(folder)
    typer.echo(
        f"{passages} passages, {train} questions to train on, {demos} to demonstrate, {held_out} held out, in {folder}"
    )


@app.command()
def compare(
    result: Annotated[Path, typer.Argument(help="The result.json of an evaluation of env=search_r1.")],
) -> None:
    """Print exact match on the seven data sets, as published and of an evaluation."""
    from agentrl.envs.builtin.search_r1.published import rows

    try:
        metrics = json.loads(result.read_text(encoding="utf-8"))["metrics"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{str(result)!r} is not the result.json of an evaluation: {error!r}") from None
    for first, *values in rows(metrics):
        typer.echo(f"{first:26}" + "".join(f"{value:>10}" for value in values))
