"""A corpus: one passage a line of a JSONL file, read at random through an array of offsets.

A line is an object with `contents` (its first line is the title, as in the corpus of Search-R1) and `id`, which may be
left out: it is then the passage's place in the file, from 0. Empty lines count for nothing. The file itself stays on
disk and is memory-mapped.
"""

from __future__ import annotations

import codecs
import hashlib
import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from agentrl.errors import ConfigError

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, how much of it is done, and how much there is."""
REPORT_EVERY = 10_000


def silent(stage: str, done: int, total: int) -> None:
    """Report no progress."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage, and its score where it was found by a search."""

    id: str
    contents: str
    score: float | None = None

    @property
    def title(self) -> str:
        """The passage's first line."""
        return self.contents.partition("\n")[0]

    @property
    def body(self) -> str:
        """All after the first line."""
        return self.contents.partition("\n")[2]


def scan(path: Path, progress: Progress = silent) -> tuple[list[int], str]:
    """Check every line of a corpus.

    Returns:
        The offset in bytes of each passage, and the file's SHA-256.

    Raises:
        ConfigError: there is no such file, it is empty, or a line is no passage.
    """
    if not path.is_file():
        raise ConfigError(f"corpus {str(path)!r}: there is no such file; give a JSONL file of passages")
    offsets: list[int] = []
    digest, place, size = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            digest.update(line)
            if line.strip():
                _passage(line, path, number)
                offsets.append(place)
            place += len(line)
            if number % REPORT_EVERY == 0:
                progress("reading the corpus", place, size)
    if not offsets:
        raise ConfigError(f"corpus {str(path)!r}: the file holds no passages")
    progress("reading the corpus", size, size)
    return offsets, digest.hexdigest()


def _passage(line: bytes, path: Path, number: int) -> Passage:
    try:
        row = orjson.loads(line.removeprefix(codecs.BOM_UTF8))
        contents = row["contents"]
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}, line {number}: not a JSON object with contents: {error!r}") from None
    if not isinstance(contents, str) or not contents.strip():
        raise ConfigError(f"{path}, line {number}: contents must be text, and not empty")
    return Passage(str(row.get("id", number - 1)), contents)


class Corpus:
    """The passages of a file, by their place in it.

    Args:
        path: the JSONL file.
        offsets: each passage's offset in bytes, as `scan` returned them (a list or an array).
    """

    def __init__(self, path: Path, offsets: Any) -> None:
        self.path, self._offsets = path, offsets
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, place: int) -> Passage:
        start = int(self._offsets[place])
        end = self._bytes.find(b"\n", start)
        return _passage(self._bytes[start : end if end >= 0 else len(self._bytes)], self.path, place + 1)

    def texts(self, start: int, end: int) -> Iterator[str]:
        """The contents of the passages [start, end)."""
        for place in range(start, min(end, len(self))):
            yield self[place].contents

    def close(self) -> None:
        self._bytes.close()
