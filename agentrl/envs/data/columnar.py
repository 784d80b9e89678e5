"""Batches of rows from Parquet and Arrow files, each bounded before it is in memory as values."""

from __future__ import annotations

import io
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO

from agentrl.errors import ConfigError, require_extra

PARQUET = (".parquet",)
ARROW = (".arrow", ".feather")
FILE_MAGIC = b"ARROW1\0\0"
END_MAGIC = b"ARROW1"
"""The first bytes of an Arrow file, which goes on as a stream does, and its last ones."""
BATCH = 8192
"""Rows of a Parquet file that are in memory at a time, where they have no more than `BATCH_BYTES` on average."""
BATCH_BYTES = 1 << 26
MOST_BYTES, MOST_VALUES = 1 << 28, 1 << 25
"""Of what is in memory at a time: rows of a Parquet file, or a whole JSON file, whose commas are counted."""
MOST_BATCH = 1 << 31
"""Bytes of a batch of an Arrow file, unpacked: its rows are read as they were written, however many they are."""


def read_batches(name: str, file: BinaryIO, parquet: bool) -> Iterator[tuple[Any, int]]:
    """Batches of an open file, no larger than may be in memory, each with its size in bytes.

    Raises:
        ConfigError: it is not readable, a column is there twice, or a row is too large.
        MissingExtra: pyarrow is not installed.
    """
    with require_extra("parquet", "pyarrow"):
        import pyarrow
    try:
        for batch in _parquet(name, file) if parquet else _arrow(name, file):
            yield from _parts(name, batch)
    except (pyarrow.ArrowException, RecursionError, MemoryError, UnicodeDecodeError, struct.error, OSError) as error:
        if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):
            raise  # of the file system, or of the network; pyarrow's own for damaged pages has no number
        kind = "a readable Parquet file" if parquet else "a readable Arrow file"
        raise ConfigError(f"{name}: not {kind}: {error}") from None


def _parquet(name: str, opened: BinaryIO) -> Iterator[Any]:
    """The batches; of a file that is streamed no more than a row group is transferred."""
    import pyarrow.parquet as parquet

    metadata = parquet.read_metadata(opened)
    _check_columns(name, metadata.schema.to_arrow_schema())
    with parquet.ParquetFile(opened, metadata=metadata, read_dictionary=_texts(metadata.schema)) as file:
        for group in range(file.num_row_groups):  # asked for together, all would be read ahead
            about = file.metadata.row_group(group)
            rows = BATCH_BYTES * about.num_rows // max(about.total_byte_size, 1)
            yield from file.iter_batches(max(1, min(rows, BATCH)), row_groups=[group])


def _arrow(name: str, opened: BinaryIO) -> Iterator[Any]:
    """The batches of an Arrow file (Feather is one) or stream, as they were written, in order."""
    import pyarrow.ipc as ipc

    if opened.read(len(FILE_MAGIC)) == FILE_MAGIC:
        opened.seek(-len(END_MAGIC), io.SEEK_END)
        if opened.read() != END_MAGIC:
            raise ConfigError(f"{name}: not a whole Arrow file: its end is missing")
        opened.seek(len(FILE_MAGIC))
    else:
        opened.seek(0)
    with ipc.open_stream(io.BufferedReader(_Messages(name, ipc.MessageReader.open_stream(opened)))) as reader:
        _check_columns(name, reader.schema)
        for batch in reader:
            batch.validate(full=True)  # offsets of a stranger may point anywhere
            yield batch


class _Messages(io.RawIOBase):
    """The bytes of an Arrow stream, a message at a time, each of which is bounded before it is unpacked."""

    def __init__(self, name: str, messages: Any) -> None:
        self._name, self._messages, self._left = name, messages, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            try:
                message = self._messages.read_next_message()
            except StopIteration:
                return 0
            if (size := _count_unpacked(message)) > MOST_BATCH:
                raise ConfigError(f"{self._name}: a batch has more than {MOST_BATCH:,} bytes ({size:,}), unpacked")
            self._left = memoryview(message.serialize()).cast("B")
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count


def _count_unpacked(message: Any) -> int:
    """Return the bytes of a message's buffers, which begin with their own sizes where they are packed.

    As https://arrow.apache.org/docs/format/Columnar.html has it; pyarrow itself unpacks whatever size is there.
    """
    meta, body = message.metadata, message.body
    if body is None or message.type not in ("record batch", "dictionary"):
        return 0
    header = _follow(meta, _field(meta, _follow(meta, 0), 2))
    if message.type == "dictionary":
        header = _follow(meta, _field(meta, header, 1))
    if not _field(meta, header, 3):  # not packed
        return int(body.size)
    buffers = _follow(meta, _field(meta, header, 2))
    total = 0
    for place in range(struct.unpack_from("<I", meta, buffers)[0]):
        offset, length = struct.unpack_from("<qq", meta, buffers + 4 + 16 * place)
        size = struct.unpack_from("<q", body, offset)[0] if length >= 8 else 0
        total += max(size, length)
    return total


def _follow(data: Any, place: int) -> int:
    """Return the place to which the offset at a place of a FlatBuffer leads."""
    return int(place + struct.unpack_from("<I", data, place)[0])


def _field(data: Any, table: int, number: int) -> int:
    """Return the place of a field of a FlatBuffer's table; 0 where it has none."""
    fields = table - struct.unpack_from("<i", data, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", data, fields)[0]:
        return 0
    offset = struct.unpack_from("<H", data, fields + 4 + 2 * number)[0]
    return int(table + offset) if offset else 0


def _check_columns(name: str, schema: Any) -> None:
    if twice := [column for column, times in Counter(schema.names).items() if times > 1]:
        raise ConfigError(f"{name}: the column {twice[0]!r} is there twice: only one could be read")


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
    import pyarrow
    import pyarrow.compute as compute

    if hasattr(array, "storage"):  # a type that somebody added
        return _size(array.storage)
    if hasattr(array, "dictionary"):
        if not hasattr(array.dictionary, "flatten"):
            bytes_of = compute.take(pyarrow.array(_lengths(array.dictionary)), array.indices)
            return compute.sum(bytes_of).as_py() or 0, len(array)
        size, values = _size(array.dictionary)  # each row may have all of it
        return size * len(array), max(values, 1) * len(array)
    if hasattr(array, "keys"):  # a map
        parts = [array.keys, array.items]
    elif hasattr(array, "flatten"):
        inner = array.flatten()
        parts = inner if isinstance(inner, list) else [inner]
    else:
        return int(_lengths(array).sum()), len(array)
    sizes = list(map(_size, parts))
    return sum(size for size, _ in sizes), sum(count for _, count in sizes)


def _lengths(array: Any) -> Any:
    """The bytes of each value that is no list, as an array of NumPy's."""
    import numpy
    import pyarrow.compute as compute

    kind = str(array.type)
    if kind in ("string_view", "binary_view"):  # rows may share a text; each view begins with its length
        views = numpy.frombuffer(array.buffers()[1], "<i4").reshape(-1, 4)
        return views[array.offset : array.offset + len(array), 0].astype("int64")
    if kind in ("string", "binary", "large_string", "large_binary"):
        return compute.fill_null(compute.binary_length(array), 0).cast("int64").to_numpy(zero_copy_only=False)
    if array.type.num_fields or kind.startswith("run_end_encoded"):
        raise ConfigError(f"a column of the type {kind} can't be read")
    return numpy.full(len(array), array.nbytes // max(len(array), 1))
