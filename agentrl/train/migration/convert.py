"""A file of another framework's rows, written as one that a run reads, with what could not be carried."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.envs.data.dataset import Dataset
from agentrl.envs.data.hub import is_hub
from agentrl.errors import ConfigError
from agentrl.rollout.sources.files import as_setting
from agentrl.train.migration.rows import Kind, Refused, RowReader

SHOWN = 10
"""Rows that were left out which are printed; all of them are in a file."""
COMMANDS = {
    Kind.QUESTIONS: "agentrl train env=questions env.path={out} model=PATH",
    Kind.REPOSITORIES: "agentrl train env=swe env.path={out} model=PATH",
    Kind.CONVERSATIONS: "agentrl train algo=sft data={out} model=PATH",
    Kind.PAIRS: "agentrl train algo=dpo data={out} model=PATH",
    Kind.VERDICTS: "agentrl train algo=kto data={out} model=PATH",
}
FOLDERS = {
    "task.toml": ("tasks in Harbor's format", "agentrl train env=swe env.path={path} model=PATH"),
    "split_tasks.json": ("tau2-bench's tasks", "agentrl train env=retail env.path={path} model=PATH"),
    "db.json": ("tau2-bench's tasks", "agentrl train env=retail env.path={path} model=PATH"),
}
"""Files by which a folder is known that runs as it is."""


@dataclass
class Converted:
    """The result of a file's conversion: how many rows were carried, and the places of the others, with why."""

    path: str
    out: Path
    reader: RowReader
    carried: int = 0
    left_out: list[tuple[str, str]] = field(default_factory=list)

    @property
    def reasons(self) -> Path:
        """The file with all rows that were left out."""
        return self.out.with_name(f"{self.out.stem}.left-out.jsonl")

    def lines(self) -> Iterator[str]:
        """The result in lines: counts, what was left out, and the command that trains on it."""
        rows = self.carried + len(self.left_out)
        kind = self.reader.kind
        yield (
            f"{self.path}: {rows:,} rows, {self.carried:,} carried as {kind}"
            if kind
            else f"{self.path}: no row of {rows:,}"
        )
        yield from (f"left out: {place}: {why}" for place, why in self.left_out[:SHOWN])
        if len(self.left_out) > SHOWN:
            yield f"left out: {len(self.left_out) - SHOWN:,} more"
        if self.left_out:
            yield f"all {len(self.left_out):,} that were left out: {self.reasons}"
        for name, count in sorted(self.reader.unread.items()):
            yield f"not carried: {name}, in {count:,} rows"
        if kind:
            yield f"{self.out}: {self.command(kind)}"

    def command(self, kind: Kind) -> str:
        """The command that trains on what was written."""
        words = COMMANDS[kind].format(out=shlex.quote(str(self.out)))
        if kind is Kind.QUESTIONS and self.reader.grading is not None:
            words += f" env.grading={self.reader.grading}"
        if kind is Kind.QUESTIONS and self.reader.system is not None:
            words += f" {shlex.quote(f'env.instructions={self.reader.system}')}"
        return words + (f" data.strings={self.reader.strings}" if self.reader.strings and "data=" in words else "")


def convert_file(path: str, out: Path, reader: RowReader) -> Converted:
    """Write the rows that can be carried into a new JSONL file, and why others can't into one beside it.

    Raises:
        ConfigError: a file is there already, or the rows can't be read.
    """
    found = Converted(path, out, reader)
    for file in (out, found.reasons):
        if file.exists():
            raise ConfigError(f"{str(file)!r} is there already")
    lines: list[str] = []
    rows = Dataset(path).every_row()
    while (each := as_setting(lambda: next(rows, None))) is not None:
        place, row = each
        try:
            lines.append(json.dumps(reader.carry(row, place), ensure_ascii=False))
        except Refused as refused:
            found.left_out.append((place, str(refused).replace("data.strings=", "--strings ")))
    found.carried = len(lines)
    if lines:
        out.write_text("".join(f"{line}\n" for line in lines))
    if found.left_out:
        named = [json.dumps({"row": place, "why": why}, ensure_ascii=False) for place, why in found.left_out]
        found.reasons.write_text("".join(f"{line}\n" for line in named))
    return found


def runs_as_it_is(path: str) -> str | None:
    """The sentence that a folder needs no conversion, with the command that trains on it; None where it does."""
    folder = Path(path).expanduser()
    if is_hub(path) or not folder.is_dir():
        return None
    for name, (what, command) in FOLDERS.items():
        if next(folder.glob(name), None) or next(folder.glob(f"*/{name}"), None):
            return f"{path}: {what}, which run as they are: {command.format(path=shlex.quote(path))}"
    return None


def options(kind: str | None, grading: str | None, strings: str | None) -> dict[str, Any]:
    """The reader's settings by what was typed."""
    from agentrl.envs.builtin.questions.formats import Grading

    allowed: dict[str, tuple[str | None, Set[str]]] = {
        "--as": (kind, set(Kind)),
        "--grading": (grading, set(Grading)),
        "--strings": (strings, {"chat", "plain"}),
    }
    for name, (value, values) in allowed.items():
        if value is not None and value not in values:
            raise ConfigError(f"{name} {value!r}: allowed are {', '.join(sorted(values))}")
    return {"kind": Kind(kind) if kind else None, "grading": Grading(grading) if grading else None, "strings": strings}
