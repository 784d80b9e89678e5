"""Rows of tables in text: CSV, and what spreadsheets write in its place."""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

from agentrl.errors import ConfigError

MMLU = ("question", "A", "B", "C", "D", "answer")
"""The columns of MMLU's own CSV files, which don't name them: a first line that ends in a letter is a question."""
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
"""The characters that divide the columns of a table; semicolons are what spreadsheets write where the comma is a
decimal point."""
CELL_CHARS = 1 << 24
"""Characters of a CSV file's cell; Python's own limit is 131,072, which long documents exceed."""


def read_table(name: str, lines: Iterator[str], tabs: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a table in text, each with its line.

    Raises:
        ConfigError: its columns are not clear, or a line is none of its rows.
    """
    csv.field_size_limit(max(csv.field_size_limit(), CELL_CHARS))
    head = next(lines, "")
    usual = "\t" if tabs else ","
    separator = _separator(name, head, usual)
    reader = csv.DictReader(itertools.chain([head], lines), delimiter=separator, strict=True)
    try:
        first = list(reader.fieldnames or ())
        if len(first) == len(MMLU) and first[-1] in MMLU[1:-1]:
            reader.fieldnames = MMLU
            yield reader.line_num, dict(zip(MMLU, first, strict=True))
        elif twice := [column for column, times in Counter(first).items() if column and times > 1]:
            raise ConfigError(f"{name}, line 1: the column {twice[0]!r} is there twice: only one could be read")
        for row in reader:
            if None in row or None in row.values():
                divided = "" if separator == usual else f", which {SEPARATORS[separator]} divide"
                raise ConfigError(f"{name}, line {reader.line_num}: its values are not as many as the columns{divided}")
            yield reader.line_num, row
    except csv.Error as error:
        unended = "unexpected end of data" in str(error)
        words = f"{error}: a cell that begins with a quotation mark has no end" if unended else error
        raise ConfigError(f"{name}, line {reader.reader.line_num}: {words}") from None


def _separator(name: str, head: str, usual: str) -> str:
    """Find the separator of the columns that the first line names: another where the usual leaves a single column."""
    if _columns(head, usual) != 1:
        return usual
    several = [each for each in SEPARATORS if _columns(head, each) > 1]
    if len(several) > 1:
        words = " or ".join(SEPARATORS[each] for each in several)
        raise ConfigError(f"{name}, line 1: its columns may be divided by {words}: use one of them alone, or JSONL")
    return several[0] if several else usual


def _columns(head: str, separator: str) -> int:
    try:
        return len(next(csv.reader([head], delimiter=separator), ()))
    except csv.Error:  # which reading the file reports with its line
        return 0
