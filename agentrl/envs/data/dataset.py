"""A data set as a user names it: a file, a folder in Hugging Face's layout, or one of the hub, and what of it is taken.

A folder's files belong to the split whose name is a word of their path (`data/train-00000-of-00002.parquet`,
`test.jsonl`); a README.md that declares files and splits (`card`) comes first. Where there is none for `eval`, the
other files have both splits, and `splits.divide` decides. Folders called `key=value` are a column. Files of the hub are
streamed: what is not read is not transferred.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

from agentrl.common.foreign_errors import words
from agentrl.common.imports import load
from agentrl.envs.data import card, hub
from agentrl.envs.data.conditions import conditions, fits
from agentrl.envs.data.rows import KINDS, ending_of, parse_rows
from agentrl.errors import ConfigError, suggest

Row = Mapping[str, Any]
WORDS = {
    "train": (("train", "training"),),
    "eval": (("eval", "evaluation"), ("test", "testing"), ("validation", "valid", "val", "dev")),
}
"""The words in files' paths that make them a split's; of `eval` the first ones that there are."""
EVAL_WORDS = {word for words in WORDS["eval"] for word in words}
SHOWN = 5
"""Files that a note names."""
ABOUT = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json"}
"""Files that the library `datasets` writes about a data set beside its rows, and beside `state.json`."""
CACHED = "cache-*.arrow"
"""Files of results that `datasets` keeps beside a saved data set."""
NULL = "__HIVE_DEFAULT_PARTITION__"
"""The value of a partition's folder that stands for none."""
NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
"""A partition's value that is a number; a day or a code such as 007 is a text."""
SPLIT_WORDS = EVAL_WORDS.union(*WORDS["train"])


@dataclass(frozen=True)
class Dataset:
    """Rows of a data set.

    Attributes:
        path: a file, a folder, or hf://OWNER/NAME.
        columns: names of our own for columns: {"question": "problem"}; `a.b` is inside a column.
        where: which rows are taken: by column a value, a list of values, or bounds {"min": 1, "max": 5}; or a function
            of the row, path/to/file.py:NAME.
        config: which of its configurations, a folder within it.
        endpoint: the hub's address.
        left_out: counts, as "where", the rows that were not taken so far.
    """

    path: str
    columns: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, Any] | str | None = None
    config: str = ""
    endpoint: str = hub.HUB
    left_out: Counter[str] = field(default_factory=Counter, compare=False)

    def rows(self, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """The rows of the files that have `train` or `eval`, each with its place in words, for messages.

        Raises:
            ConfigError: there are no files, one is not what its name says, or a column is missing.
            EnvError: the hub can't be reached.
            MissingExtra: pyarrow is not installed.
        """
        files = self._files()
        if both := [name for name in self._of_split(files, "train") if name in self._of_split(files, "eval")]:
            raise ConfigError(
                f"env.path = {self.path!r}: by the words in its path {both[0]!r} is for training and for evaluation: "
                "give env.path and env.eval_path"
            )
        chosen = self._of(files, split)
        if not chosen:
            raise ConfigError(f"env.path = {self.path!r}: it has no files for the split {split!r}")
        yield from self._read(chosen)

    def unread(self) -> list[str]:
        """The files that are of neither split, beside those whose paths name one."""
        files = self._files()
        return sorted({*files} - {*self._of(files, "train"), *self._of(files, "eval")})

    def note_unread(self) -> list[str]:
        """Name the files that are of neither split, in a sentence; none where there are no such files."""
        unread = self.unread()
        more = f" and {len(unread) - SHOWN:,} more" if len(unread) > SHOWN else ""
        names = ", ".join(unread[:SHOWN])
        return [f"env.path = {self.path!r}: files that are of neither split: {names}{more}"] if unread else []

    def _of(self, files: list[str], split: str) -> list[str]:
        """The files of a split; where none is named for it, those for training, or those that none are named for."""
        named = self._of_split(files, split) or self._of_split(files, "train")
        return named or [name for name in files if not self._words(name) & EVAL_WORDS]

    def _of_split(self, files: list[str], split: str) -> list[str]:
        for known in WORDS[split]:
            if chosen := [name for name in files if self._words(name) & set(known)]:
                return chosen
        return []

    def _words(self, name: str) -> set[str]:
        """The words of the split that is declared for a file, or else of its path."""
        return _words((self._declared or {}).get(name, name))

    def shared(self) -> bool:
        """Return whether the same files have both splits."""
        return not self._of_split(self._files(), "eval")

    def every_row(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """All rows, whatever split they are of; else as `rows`."""
        yield from self._read(self._files())

    def _check_once(self, names: list[str]) -> None:
        """Refuse to read rows twice: from files in two formats, or of several configurations."""
        stems: dict[str, str] = {}
        folders: dict[str, list[str]] = {}
        for name in names:
            stem = name[: len(name) - len(ending_of(name))]
            if (other := stems.setdefault(stem, name)) != name:
                raise ConfigError(
                    f"env.path = {self.path!r}: {other!r} and {name!r} seem to be the same rows in two formats: "
                    "name one of them as env.path"
                )
            if self._declared is None and _words(Path(name).name) & SPLIT_WORDS and not _partition(name):
                folders.setdefault(Path(name).name, []).append(Path(name).parent.name or ".")
        if several := next((parents for parents in folders.values() if len(parents) > 1), None):
            raise ConfigError(
                f"env.path = {self.path!r}: it has several configurations: say which one with "
                f"env.config= (there are {', '.join(sorted(several))})"
            )

    def _read(self, names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        if len(names) > 1:
            self._check_once(names)
        kept, numbers = self._condition(), self._numbers
        for name in names:
            columns = {key: int(value) if value and key in numbers else value for key, value in _partition(name)}
            with closing(self._open(name)) as file:
                for number, row in parse_rows(name, file):
                    place = f"{name}, row {number}"
                    row = self._rename({**columns, **row}, place)
                    if kept(row, place):
                        yield place, row
                    else:
                        self.left_out["where"] += 1

    @cached_property
    def _numbers(self) -> set[str]:
        """The columns of partitions whose values are whole numbers in all files."""
        known = [each for name in self._files() for each in _partition(name)]
        texts = {key for key, value in known if value is not None and not NUMBER.fullmatch(value)}
        return {key for key, _ in known} - texts

    @cached_property
    def _found(self) -> list[str]:
        """All files; of a folder by their paths in it."""
        if not self.path:  # not the current folder, as Python has it
            raise ConfigError("env.path = '': name a file, a folder or hf://OWNER/NAME")
        if hub.is_hub(self.path):
            return hub.list_files(self.path.removeprefix(hub.SCHEME), endpoint=self.endpoint)
        if (folder := Path(self.path).expanduser()).is_dir():
            return [file.relative_to(folder).as_posix() for file in files_of(folder)]
        if folder.is_file():
            return [folder.name]
        raise ConfigError(f"env.path = {self.path!r}: {hub.no_such_file(self.path)}")

    @cached_property
    def _declared(self) -> dict[str, str] | None:
        """The split of each file that the data set's card declares; None where it declares none."""
        if card.NAME not in self._found or len(self._found) == 1:
            return None
        with closing(self._open(card.NAME)) as file:
            text = file.read(card.MOST_TEXT).decode("utf-8", "replace")
        try:
            return card.declared_files(text, self.config, [*filter(_is_data, self._found)])
        except KeyError as error:
            raise ConfigError(
                f"env.path = {self.path!r}: it has several configurations: say which one with env.config= (there are "
                f"{', '.join(error.args)})"
            ) from None

    def _files(self) -> list[str]:
        if self._declared is not None:
            return sorted(self._declared)
        if not hub.is_hub(self.path) and Path(self.path).expanduser().is_file():
            return self._found
        about = {Path(name).parent / "state.json" for name in self._found if Path(name).name in ABOUT}
        data = sorted(name for name in self._found if _is_data(name) and Path(name) not in about)
        chosen = [name for name in data if not self.config or self.config in Path(name).parent.parts]
        if not chosen:
            configs = sorted({part for name in data for part in Path(name).parent.parts})
            hint = f" of env.config = {self.config!r} (there are {', '.join(configs) or 'none'})" if self.config else ""
            raise ConfigError(f"env.path = {self.path!r}: there are no {', '.join(KINDS)} files{hint}")
        return chosen

    def _open(self, name: str) -> BinaryIO:
        if hub.is_hub(self.path):
            return hub.open_file(self.path.removeprefix(hub.SCHEME), name, endpoint=self.endpoint)
        folder = Path(self.path).expanduser()
        return (folder / name if folder.is_dir() else folder).open("rb")

    def _rename(self, row: dict[str, Any], place: str) -> dict[str, Any]:
        return row | {ours: _value(row, theirs, place) for ours, theirs in self.columns.items()}

    def _condition(self) -> Callable[[Row, str], bool]:
        if self.where is None:
            return lambda row, place: True
        if isinstance(self.where, str):
            return partial(_keep, self.where, load(self.where, f"env.where={self.where!r}"))
        wanted = dict(conditions(self.where))
        return lambda row, place: all(fits(_value(row, name, "env.where"), value) for name, value in wanted.items())


def _keep(name: str, function: Callable[[Row], Any], row: Row, place: str) -> bool:
    """Ask a function of the user's for a row."""
    try:
        return bool(function(row))
    except Exception as error:
        raise ConfigError(f"{place}: env.where={name!r} raised {words(error)}") from error


def files_of(folder: Path) -> Iterator[Path]:
    """The files below a folder, also behind links to other folders, each of which is read once."""
    seen = {folder.resolve()}
    for parent, folders, files in os.walk(folder, followlinks=True):
        places = {name: (Path(parent) / name).resolve() for name in sorted(folders)}
        folders[:] = [name for name, place in places.items() if place not in seen]
        seen.update(places.values())
        yield from (file for name in files if (file := Path(parent) / name).is_file())


def _is_data(name: str) -> bool:
    """Return whether a file of a folder may hold rows, by its name: hidden folders have copies of notebooks', say."""
    path = Path(name)
    copied = path.name in ABOUT or fnmatchcase(path.name, CACHED) or any(part.startswith(".") for part in path.parts)
    return bool(ending_of(name)) and not copied


def _partition(name: str) -> list[tuple[str, str | None]]:
    """The columns that the folders of a file's path are, as Hive and Spark write them: `lang=en/part-0.parquet`."""
    parts = [part.partition("=") for part in Path(name).parent.parts]
    return [(key, None if value == NULL else unquote(value)) for key, equals, value in parts if key and equals]


def _words(path: str) -> set[str]:
    return set(re.split(r"[^a-z]+", path.lower()))


def _value(row: Row, name: str, place: str) -> Any:
    found: Any = row
    for part in [name] if name in row else name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            hint = suggest(name, list(row))
            raise ConfigError(f"{place}: there is no column {name!r}{hint} (columns: {', '.join(row)})")
        found = found[part]
    return found
