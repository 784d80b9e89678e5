"""Rows of data sets, from JSONL, JSON and CSV (packed or not), Parquet or Arrow files, and the tasks made of them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, cast

from agentrl.common.plain import plain
from agentrl.common.untrusted import one_of_each, read_json
from agentrl.envs.data.columnar import ARROW, FILE_MAGIC, MOST_VALUES, PARQUET, read_batches
from agentrl.envs.data.splits import TaskList
from agentrl.envs.data.tables import read_table
from agentrl.errors import ConfigError, require_extra
from agentrl.types import Task

MakeTask = Callable[[Mapping[str, Any], int], Task | None]
"""Makes a task of a row and the number of its line; ValueError, TypeError or KeyError say that the row is none."""
TEXTS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
PACKERS = {
    b"\x1f\x8b": ("gzip", ".gz"),
    b"BZh": ("bzip2", ".bz2"),
    b"\xfd7zX": ("xz", ".xz"),
    b"\x28\xb5\x2f\xfd": ("zstd", ".zst"),
}
"""The first bytes of packed files, what packed them, and the endings of their names."""
KINDS = (*TEXTS, *PARQUET, *ARROW)
ENDINGS = (*KINDS, *(f"{ending}{packed}" for ending in TEXTS for _, packed in PACKERS.values()))
"""The endings of the names of data files, in small or capital letters; any other file is read as JSONL."""
OTHER_ENDINGS = tuple(f"{ending}.zip" for ending in TEXTS)
"""Those of data files that are refused: a folder's may not be left out in silence."""
SPREADSHEETS = (".xlsx", ".xls", ".ods")
MOST_JSON = 1 << 30
"""Bytes of a JSON file, unpacked."""
MOST_LINE = 1 << 26
"""Characters of a line. Megabytes of gzip can be thousands of times as many, and are not unpacked further."""
MOST_ROWS = 1 << 24
"""Of a file: a few kilobytes can have a billion of nothing."""
MOST_TEXT = 1 << 33
"""Bytes or characters of all rows of a file together, unpacked."""
SCORING = frozenset(
    {
        *("reward_model", "data_source", "extra_info", "ground_truth", "verification_info", "verifier", "grader"),
        *("scorer", "checker", "rubric", "rubrics", "metric", "reward", "score", "tests", "test", "test_list", "label"),
        *(
            "challenge_test_list",
            "unit_tests",
            "answer",
            "answers",
            "solution",
            "solutions",
            "constraint",
            "constraints",
        ),
        *("reward_basis", "env_assertions", "nl_assertions", "ability", "reference", "reference_answer", "target"),
    }
)
"""Columns by which data sets say how an answer is to be scored."""
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
BINARY = {
    b"PAR1": "a Parquet file: name it {stem}.parquet",
    FILE_MAGIC: "an Arrow file: name it {stem}.arrow",
    b"\xff\xff\xff\xff": "an Arrow stream: name it {stem}.arrow",
    b"FEA1": "a Feather file of the first version: `pandas.read_feather({name!r}).to_parquet('{stem}.parquet')`",
    b"PK\x03\x04": "packed by zip: unpack it",
    b"SQLite f": "an SQLite database: `sqlite3 -csv -header {name} 'SELECT …' > {stem}.csv` writes a table of it",
}
"""The first bytes of files whose rows are no text, and what makes them readable."""


class Row(dict[str, Any]):
    """A row that knows which of its columns were asked for."""

    def __init__(self, columns: Mapping[str, Any], read: set[str] | None = None) -> None:
        super().__init__(columns)
        self.read = set[str]() if read is None else read

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The column's value, or `default`."""
        self.read.add(name)
        return super().get(name, default)

    def over(self, columns: Mapping[str, Any]) -> Row:
        """The same row with other values in some columns."""
        return Row({**self, **columns}, self.read)


def describe_content(where: str, count: int, what: str, layouts: Mapping[str, int], ignored: Iterable[str]) -> str:
    """Describe the content of a file.

    Args:
        where: names the file.
        count: of its tasks.
        what: they are, in the plural.
        layouts: the kinds of rows, with their numbers.
        ignored: the columns that nothing reads.
    """
    kinds = ", ".join(f"{name} ({number:,})" for name, number in layouts.items())
    words = f"{where}: {count:,} {what}" + (f", read as {kinds}" if kinds else "")
    unread = sorted(ignored)
    if unread:
        words += f"; columns that are not read: {', '.join(unread)}"
    if scoring := [name for name in unread if name.lower().rpartition(".")[2] in SCORING]:
        words += f" (so {', '.join(scoring)} {'has' if len(scoring) == 1 else 'have'} no part in the scoring)"
    return words


def decode_messages(value: Any) -> Any:
    """Messages, also where a column holds them as JSON, as CSV files do, or a single one; anything else as it is."""
    found = value
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            found = read_json(value)
        except ValueError:
            return value
    rows = list(found) if isinstance(found, list | tuple) else [found]
    known = rows and all(isinstance(row, Mapping) and ("role" in row or "from" in row) for row in rows)
    return rows if known else value


def require_file(setting: str, given: str | Path) -> Path:
    """The path of a file; ConfigError, under the name of its setting, where it is none."""
    chosen = Path(given).expanduser()
    if not chosen.is_file():
        why = "it is a folder: name a file" if chosen.is_dir() else "there is no such file"
        raise ConfigError(f"{setting} = {str(given)!r}: {why}")
    return chosen


def read_rows(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a file, each with its line, or its number, from 1; see `parse_rows`.

    Raises:
        ConfigError: there is no such file, or it is not what its name says.
        MissingExtra: pyarrow is not installed.
    """
    chosen = require_file("path", path)
    with chosen.open("rb") as file:
        yield from parse_rows(str(chosen), file)


def parse_rows(name: str, file: BinaryIO) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of an open file, by what its name ends in (`ENDINGS`).

    Raises:
        ConfigError: it is not what its name says.
        MissingExtra: pyarrow is not installed, which reads Parquet, Arrow and zstd.
    """
    for read, numbered in enumerate(_number_rows(name, file)):
        if read >= MOST_ROWS:
            raise ConfigError(f"{name}: it has more than {MOST_ROWS:,} rows; split it")
        yield numbered


def ending_of(name: str) -> str:
    """The ending of a data file's name, of `ENDINGS` or `OTHER_ENDINGS`; '' where it has none of them."""
    known = (each for each in (*ENDINGS, *OTHER_ENDINGS) if name.lower().endswith(each))
    return max(known, key=len, default="")


def _number_rows(name: str, file: BinaryIO) -> Iterator[tuple[int, dict[str, Any]]]:
    packed = next((packed for _, packed in PACKERS.values() if name.lower().endswith(packed)), "")
    try:
        ending = Path(name[: len(name) - len(packed)]).suffix.lower()
        file = _unpack(packed, file)
        _refuse_binary(name, ending, file)
        match ending:
            case _ if ending in (*PARQUET, *ARROW):
                yield from enumerate(_columnar(name, file, ending in PARQUET), 1)
            case ".csv" | ".tsv":
                lines = _lines(name, io.TextIOWrapper(file, "utf-8-sig", newline=""))
                yield from read_table(name, lines, ending == ".tsv")
            case ".json":
                yield from _json(name, file)
            case _ if ending in SPREADSHEETS:
                raise ConfigError(f"{name} is a spreadsheet; save its sheet as CSV in UTF-8, and give that")
            case _:
                yield from _jsonl(name, _lines(name, io.TextIOWrapper(file, "utf-8-sig")))
    except UnicodeDecodeError as error:
        encoding, only = "WINDOWS-1252", ", where that is its encoding"
        if error.object[:2] in UTF_16:
            encoding, only = "UTF-16", ""
        command = f"`iconv -f {encoding} -t UTF-8 {name} > utf8-{Path(name).name}`"
        raise ConfigError(f"{name}: not UTF-8 ({error}); {command} writes it anew{only}") from None
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if not packed or (isinstance(error, OSError) and error.errno is not None):
            raise
        packer = next(packer for packer, ending in PACKERS.values() if ending == packed)
        raise ConfigError(f"{name}: not an intact {packer} file: {error}") from None


def _unpack(packed: str, file: BinaryIO) -> BinaryIO:
    """The content of a packed file, by the ending of its name; what is not packed as it is: all have `peek`."""
    match packed:
        case ".gz":
            return cast(BinaryIO, gzip.GzipFile(fileobj=file))
        case ".bz2":
            return cast(BinaryIO, bz2.BZ2File(file))
        case ".xz":
            return cast(BinaryIO, lzma.LZMAFile(file))
        case ".zst":
            with require_extra("parquet", "pyarrow"):
                import pyarrow
            return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), "zstd"))
    return file if hasattr(file, "peek") else cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, file)))


def _refuse_binary(name: str, ending: str, file: BinaryIO) -> None:
    """Refuse a file that is no text by its first bytes, though it is by its name; ConfigError says how it is read."""
    if ending in (*PARQUET, *ARROW, *SPREADSHEETS):
        return
    head = file.peek(8)[:8]  # type: ignore[attr-defined]
    if what := next((what for magic, what in BINARY.items() if head.startswith(magic)), None):
        raise ConfigError(f"{name}: it is {what.format(name=name, stem=Path(name).stem)}")
    if found := next((found for magic, found in PACKERS.items() if head.startswith(magic)), None):
        packer, packed = found
        known = next((each for each in (Path(name).name, Path(name).stem) if Path(each).suffix in TEXTS), None)
        raise ConfigError(f"{name}: it is packed by {packer}: name it {known or f'{Path(name).stem}.jsonl'}{packed}")


def _lines(name: str, text: io.TextIOBase) -> Iterator[str]:
    """The lines, each of which is bounded before it is read."""
    number = total = 0
    while line := text.readline(MOST_LINE + 1):
        number += 1
        total += len(line)
        if len(line) > MOST_LINE:
            raise ConfigError(f"{name}, line {number}: it has more than {MOST_LINE:,} characters")
        _check_total(name, total)
        yield line


def _jsonl(name: str, lines: Iterator[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = read_json(line, one_of_each)
        except ValueError as error:
            words = f"{name}, line {number}: not a JSON object: {error}; give a .jsonl, .json, .csv or .parquet file"
            raise ConfigError(words) from None
        if not isinstance(row, dict):
            raise ConfigError(f"{name}, line {number}: not a JSON object: {line.strip()[:80]}")
        yield number, row


def _json(name: str, file: BinaryIO) -> Iterator[tuple[int, dict[str, Any]]]:
    """A list of objects, as it is or as `data` of an object, or one object; or an object in each line, as in JSONL."""
    data = file.read(MOST_JSON + 1)
    if len(data) > MOST_JSON or data.count(b",") > MOST_VALUES:
        raise ConfigError(
            f"{name}: a JSON file may have {MOST_JSON:,} bytes and {MOST_VALUES:,} commas; give JSONL, a row in a line"
        )
    text = data.decode("utf-8-sig")
    try:
        rows = read_json(text, one_of_each)
    except ValueError as error:
        if not text.lstrip().startswith("["):
            yield from _jsonl(name, _lines(name, io.StringIO(text)))
            return
        raise ConfigError(f"{name}: not JSON: {error}") from None
    if isinstance(rows, dict):
        if rows and (_is_numbered(rows) or all(map(_is_numbered, rows.values()))):
            raise ConfigError(
                f"{name}: its rows stand by number, as pandas' to_json writes them; "
                "to_json(orient='records', lines=True) writes a list"
            )
        rows = next((value for key, value in rows.items() if key.lower() == "data" and isinstance(value, list)), [rows])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{name}: a list of objects is expected")
    yield from enumerate(rows, 1)


def _is_numbered(value: Any) -> bool:
    return isinstance(value, dict) and len(value) > 0 and all(map(str.isdecimal, value))


def _columnar(name: str, file: BinaryIO, parquet: bool) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet or Arrow file, a batch in memory at a time."""
    total = 0
    for batch, size in read_batches(name, file, parquet):
        total += size
        _check_total(name, total)
        for row in batch.to_pylist():
            yield {column: _plain(value) for column, value in row.items()}


def _check_total(name: str, total: int) -> None:
    if total > MOST_TEXT:
        raise ConfigError(f"{name}: its rows have more than {MOST_TEXT:,} bytes; split it")


def _plain(value: Any) -> Any:
    """A cell as plain data: decimals, dates and bytes are no JSON, and NaN is what pandas writes for none."""
    return None if isinstance(value, float) and math.isnan(value) else plain(value)


def read_tasks(
    path: Path, task: MakeTask, what: str, layout: Callable[[Mapping[str, Any]], str] = lambda _: ""
) -> TaskList:
    """A file's tasks, with a note on what it holds; it is read again only where it has changed.

    Args:
        path: JSONL or Parquet.
        task: makes a task of a row, or None where its answer can't be compared with another; a function of a module, so
            that the result can be kept.
        what: what the file's rows are, in the plural, for messages.
        layout: names a row's layout, where there are several; a function of a module too.

    Raises:
        ConfigError: a row is wrong, or there is none; the message names it.
        MissingExtra: pyarrow is not installed.
    """
    return _read(path, path.stat().st_mtime_ns, task, what, layout).copy()


@lru_cache(maxsize=16)
def _read(path: Path, stamp: int, task: MakeTask, what: str, layout: Callable[[Mapping[str, Any]], str]) -> TaskList:
    """`stamp`, the file's modification time, is part of the cache's key."""
    tasks, left_out, unit = list[Task](), 0, "row" if path.suffix.lower() in (*PARQUET, *ARROW) else "line"
    layouts, read, columns = Counter[str](), set[str](), dict[str, None]()
    for number, values in read_rows(path):
        row = Row(values, read)
        columns |= dict.fromkeys(values)
        try:
            made = task(row, number)
            tasks += [] if made is None else [made]
            left_out += made is None
            layouts[layout(values)] += 1
        except KeyError as error:
            raise ConfigError(f"{path}, {unit} {number}: it has no field {error}") from None
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{path}, {unit} {number}: {error}") from None
    without = f"; without an answer that can be compared, left out: {left_out:,}" if left_out else ""
    if not tasks:
        raise ConfigError(f"{path}: the file holds no {what}{without}")
    layouts.pop("", None)
    return TaskList(tasks, [describe_content(str(path), len(tasks), what, layouts, columns.keys() - read) + without])
