"""The command about data sets: `agentrl decontaminate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from agentrl.errors import ConfigError
from agentrl.terminal import print_lines

app = typer.Typer()


@app.command()
def decontaminate(
    train: Annotated[Path, typer.Argument(help="A .jsonl, .json, .csv or .parquet file.")],
    against: Annotated[list[Path], typer.Option(help="A file of what it shall not overlap with; several: repeat it.")],
    column: Annotated[str, typer.Option(help="The column of the texts, in all files.")] = "question",
    words: Annotated[int, typer.Option(min=1, help="Words of a run that counts as an overlap.")] = 13,
    to: Annotated[Path | None, typer.Option("--out", help="Write the other rows into this new JSONL file.")] = None,
) -> None:
    """Count the rows of a data set that share a run of words with another; 1 where there are some, unless --out."""
    from agentrl.envs.overlap import Overlap
    from agentrl.envs.rows import read_rows

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
