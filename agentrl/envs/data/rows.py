"""Rows of data sets, from JSONL, JSON, CSV (gzipped or not) or Parquet files, and the tasks made of them."""

from __future__ import annotations

import gzip
import io
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, cast

from agentrl.common.plain import plain
from agentrl.common.untrusted import one_of_each, read_json
from agentrl.envs.data.splits import TaskList
from agentrl.envs.data.tables import read_table
from agentrl.errors import ConfigError, require_extra
from agentrl.types import Task

MakeTask = Callable[[Mapping[str, Any], int], Task | None]
"""Makes a task of a row and the number of its line; ValueError, TypeError or KeyError say that the row is none."""
TEXTS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
ENDINGS = (*TEXTS, ".parquet", *(f"{ending}.gz" for ending in TEXTS))
"""The endings of the names of data files, in small or capital letters; any other file is read as JSONL."""
OTHER_ENDINGS = (".arrow", *(f"{ending}.{packer}" for ending in TEXTS for packer in ("zst", "bz2", "xz", "zip")))
"""Those of data files that are refused: a folder's may not be left out in silence."""
SPREADSHEETS = (".xlsx", ".xls", ".ods")
BATCH = 8192
"""Rows of a Parquet file that are in memory at a time, where they have no more than `BATCH_BYTES` on average."""
BATCH_BYTES = 1 << 26
MOST_BYTES, MOST_VALUES = 1 << 28, 1 << 25
"""Of what is in memory at a time: rows of a Parquet file, or a whole JSON file, whose commas are counted."""
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
PACKERS = {b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zX": "xz", b"PK\x03\x04": "zip", b"\x1f\x8b": "gzip"}
"""The first bytes of packed files, and what packed them."""
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
BINARY = {
    b"PAR1": "a Parquet file: name it {stem}.parquet",
    b"ARROW1\0\0": "an Arrow file: `pandas.read_feather({name!r}).to_parquet('{stem}.parquet')` writes it anew",
    b"\xff\xff\xff\xff": (
        "an Arrow stream: `datasets.Dataset.from_file({name!r}).to_parquet('{stem}.parquet')` writes it anew"
    ),
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
        MissingExtra: pyarrow is not installed.
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
    plain = name.lower().removesuffix(".gz")
    if len(plain) < len(name):
        file = cast(BinaryIO, gzip.GzipFile(fileobj=file))
    try:
        _refuse_binary(name, ending := Path(plain).suffix, file)
        match ending:
            case ".parquet":
                yield from enumerate(_parquet(name, file), 1)
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
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ConfigError(f"{name}: not a gzip file: {error}") from None


def _refuse_binary(name: str, ending: str, file: BinaryIO) -> None:
    """Refuse a file that is no text by its first bytes, though it is by its name; ConfigError says how it is read."""
    if ending in (".parquet", *SPREADSHEETS):
        return
    head = file.read(8)
    file.seek(0)
    if what := next((what for magic, what in BINARY.items() if head.startswith(magic)), None):
        raise ConfigError(f"{name}: it is {what.format(name=name, stem=Path(name).stem)}")
    if packer := next((packer for magic, packer in PACKERS.items() if head.startswith(magic)), None):
        known = next((each for each in (Path(name).name, Path(name).stem) if Path(each).suffix in TEXTS), None)
        named = f"{known or f'{Path(name).stem}.jsonl'}.gz"
        mend = f"name it {named}" if packer == "gzip" else f"unpack it, or pack it by gzip as {named}"
        raise ConfigError(f"{name}: it is packed by {packer}: {mend}")


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


def _parquet(name: str, opened: BinaryIO) -> Iterator[dict[str, Any]]:
    """The rows, a batch in memory at a time; of a file that is streamed no more than a row group is transferred."""
    with require_extra("parquet", "pyarrow"):
        import pyarrow
        import pyarrow.parquet as parquet
    total = 0
    try:
        metadata = parquet.read_metadata(opened)
        if twice := [column for column, times in Counter(metadata.schema.to_arrow_schema().names).items() if times > 1]:
            raise ConfigError(f"{name}: the column {twice[0]!r} is there twice: only one could be read")
        with parquet.ParquetFile(opened, metadata=metadata, read_dictionary=_texts(metadata.schema)) as file:
            for group in range(file.num_row_groups):  # asked for together, all would be read ahead
                about = file.metadata.row_group(group)
                rows = BATCH_BYTES * about.num_rows // max(about.total_byte_size, 1)
                for batch in file.iter_batches(max(1, min(rows, BATCH)), row_groups=[group]):
                    for part, size in _parts(name, batch):
                        total += size
                        _check_total(name, total)
                        for row in part.to_pylist():
                            yield {name: _plain(value) for name, value in row.items()}
    except (pyarrow.ArrowException, RecursionError, OSError) as error:
        if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):
            raise  # of the file system, or of the network; pyarrow's own for damaged pages has no number
        raise ConfigError(f"{name}: not a readable Parquet file: {error}") from None


def _texts(schema: Any) -> list[str]:
    """The columns of texts, and of texts in lists: read as dictionaries, they have a value that rows share once."""
    columns = (schema.column(place) for place in range(len(schema)))
    return [one.path for one in columns if one.physical_type == "BYTE_ARRAY" and one.logical_type.type != "DECIMAL"]


def _parts(name: str, batch: Any) -> Iterator[tuple[Any, int]]:
    """A batch's rows, as many at a time as have the bytes and values that may be in memory, with those bytes."""
    sizes = [_size(column) for column in batch.columns]
    size, values = sum(each for each, _ in sizes), sum(each for _, each in sizes)
    if size <= MOST_BYTES and values <= MOST_VALUES:
        yield batch, size
    elif len(batch) == 1:
        raise ConfigError(f"{name}: a row has more than {MOST_BYTES:,} bytes or {MOST_VALUES:,} values")
    else:
        yield from _parts(name, batch.slice(0, len(batch) // 2))
        yield from _parts(name, batch.slice(len(batch) // 2))


def _size(array: Any) -> tuple[int, int]:
    """The bytes and the number of values in a column's rows, those of lists within lists included."""
    import pyarrow.compute as compute

    if hasattr(array, "dictionary"):
        lengths = compute.binary_length(array.dictionary).take(array.indices)
        return compute.sum(lengths.cast("int64")).as_py() or 0, len(array)
    if hasattr(array, "keys"):  # a map
        parts = [array.keys, array.items]
    elif hasattr(array, "flatten"):
        inner = array.flatten()
        parts = inner if isinstance(inner, list) else [inner]
    else:
        return array.nbytes, len(array)
    sizes = list(map(_size, parts))
    return sum(size for size, _ in sizes), sum(count for _, count in sizes)


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
    tasks, left_out, unit = list[Task](), 0, "row" if path.suffix.lower() == ".parquet" else "line"
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
