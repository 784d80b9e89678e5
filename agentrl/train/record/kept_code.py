"""Copies of the Python files that a run's settings name, in its folder's `code/`.

They are named as in `env=file.py:Class`, any plug-in, `env=trl:file.py:Class`, `agent="slime:file.py:NAME rm=…"`.
A path that a setting has may be relative, or be gone a month later. Where it leads nowhere, or the file's helpers are
gone, the copies in the run's folder are used: so a run is resumed, repeated and replayed from any working directory and
machine. Where the file is there it is used as it is now, and a change since is told. Settings keep the names that were
given. A file is copied with the modules and packages that it imports from beside itself (`imports.sources`), files of
one folder together, since they may share these. Data that they read has to be there.

`code/index.json` has for each name the copy's path below `code/`, and the SHA-256 of what was copied with it: of the
file, where that is all, else of the paths and SHA-256s of all. The first 12 digits of it name their folder.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.common import imports
from agentrl.errors import ConfigError
from agentrl.train.record.files import write_atomically

FOLDER = "code"
INDEX = "index.json"
ENDING = ".py"
_SOURCE = re.compile(r"\s*[A-Za-z_]\w*:(?=[^\s:]+\.py([\s:@]|$))")
"""An adapter's name before a file's path; other files may follow in the same setting."""
_NAMED = re.compile(r"(?<![^\s=:])[^\s=:]+\.py(?=[\s:@]|$)")
_TOOLS = re.compile(r"\s*verl:.+\.ya?ml\s*")
"""A setting with a file that names classes, which may be of Python files beside it."""


def keep(run: Path, settings: Mapping[str, Any]) -> None:
    """Copy the files that settings name, and their helpers, into a run's folder, unless they are as they were."""
    index = _index(run)
    together: dict[Path, list[str]] = defaultdict(list)
    for name in dict.fromkeys(_files(settings)):
        if name not in index or _name_missing(run, name, index[name]) is None:
            together[imports.folder_of(_path(name))].append(name)
    for folder, names in together.items():
        files = {
            within: file.read_bytes() for name in names for within, file in imports.sources(_path(name))[0].items()
        }
        digest = _digest(files)
        if all(index.get(name, {}).get("sha256") == digest for name in names):
            continue
        for within, data in files.items():
            copy = run / FOLDER / digest[:12] / within
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(copy, data)
        for name in names:
            within = _path(name).relative_to(folder).as_posix()
            index[name] = {"file": f"{digest[:12]}/{within}", "sha256": digest}
        write_atomically(run / FOLDER / INDEX, json.dumps(index, indent=1).encode())


def changes(run: Path, settings: Mapping[str, Any]) -> Iterator[str]:
    """Name the files that changed since a run used them, and those that are gone, so that their copies are used."""
    index = _index(run)
    paths = set(map(_path, index))
    told: set[Path] = set()
    for name in dict.fromkeys(_files(restore_names(run, settings), there=False)):
        if (known := index.get(name)) is None:
            continue
        copies = _copies(run, known)
        if gone := _name_missing(run, name, known):
            yield f"{gone} is not there: its copy {run / FOLDER / known['file']} is used"
            continue
        folder = imports.folder_of(_path(name))
        for within, data in _contents(copies).items():
            file = folder / within
            own = file == _path(name)
            if file in told or (file in paths and not own):
                continue
            told.add(file)
            if not file.is_file() or file.read_bytes() != data:
                what = name if own else f"{within} beside {name}"
                yield f"{what} changed since this run used it; what it was is in {copies / within}"


def usable(run: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in which names that lead nowhere are those of a run's copies.

    Raises:
        ConfigError: a copy is not as it was written.
    """
    index = _index(run)

    def copied(name: str) -> str:
        known = index.get(name)
        if known is None or (gone := _name_missing(run, name, known)) is None:
            return name
        file = (run / FOLDER / known["file"]).resolve()
        if not has(run, name, known["sha256"]):
            raise ConfigError(f"{gone} is not there, and its copy {file} is missing or was changed")
        return str(file)

    return _map(settings, copied) if index else dict(settings)


def restore_names(run: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in which a run's copies have the names that were given; the inverse of `usable`."""
    names = {str((run / FOLDER / known["file"]).resolve()): name for name, known in _index(run).items()}

    return _map(settings, lambda file: names.get(file, file)) if names else dict(settings)


def files(settings: Mapping[str, Any]) -> list[str]:
    """The Python files that settings name, there or not, and files that name such files."""
    return list(_files(settings, there=False))


def digests(run: Path) -> dict[str, str]:
    """The SHA-256 of the newest copy of each name."""
    return {name: known["sha256"] for name, known in _index(run).items()}


def has(run: Path, name: str, digest: str) -> bool:
    """Return whether a run has the copies of a file and its helpers that had a digest."""
    copies = run / FOLDER / digest[:12]
    alone = copies / Path(name).name
    if alone.is_file() and hashlib.sha256(alone.read_bytes()).hexdigest() == digest:
        return True
    return _digest(_contents(copies)) == digest


def _digest(files: Mapping[str, bytes]) -> str:
    """The SHA-256 of a single file, or of what says those of several."""
    found = {within: hashlib.sha256(data).hexdigest() for within, data in sorted(files.items())}
    return next(iter(found.values())) if len(found) == 1 else hashlib.sha256(json.dumps(found).encode()).hexdigest()


def _contents(copies: Path) -> dict[str, bytes]:
    return {file.relative_to(copies).as_posix(): file.read_bytes() for file in sorted(copies.rglob(f"*{ENDING}"))}


def _name_missing(run: Path, name: str, known: Mapping[str, str]) -> str | None:
    """Name the missing ones of a file and its helpers, whose copies are then used; None where all are there."""
    if not _path(name).is_file():
        return name
    kept = {within.partition("/")[0].removesuffix(ENDING) for within in _contents(_copies(run, known))}
    lacking = sorted(imports.sources(_path(name))[1] & kept) if len(kept) > 1 else ()
    return f"what {name} imports as {lacking[0]!r}" if lacking else None


def _copies(run: Path, known: Mapping[str, str]) -> Path:
    return run / FOLDER / known["file"].partition("/")[0]


def _path(name: str) -> Path:
    return Path(name).expanduser().resolve()


def _index(run: Path) -> dict[str, dict[str, str]]:
    file = run / FOLDER / INDEX
    try:
        found: dict[str, dict[str, str]] = json.loads(file.read_bytes())
        return {name: {key: str(known[key]) for key in ("file", "sha256")} for name, known in found.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{file} is damaged") from None


def _list_names(text: str) -> list[str]:
    """The paths of Python files that a setting names."""
    names: list[str] = []
    _replace(text, lambda name: names.append(name) or name)  # type: ignore[func-returns-value]
    return [name for name in names if name.endswith(ENDING)]


def _replace(text: str, change: Callable[[str], str]) -> str:
    """A setting with other paths in place of those of Python files."""
    if _SOURCE.match(text):
        return _NAMED.sub(lambda found: change(found[0]), text)
    name, colon, rest = text.strip().rpartition(":")
    if not name.endswith(ENDING):
        return change(text)
    changed = change(name)
    return text if changed == name else f"{changed}{colon}{rest}"


def _files(value: Any, *, there: bool = True) -> Iterator[str]:
    """The files that settings name; with `there` those that exist."""
    if isinstance(value, Mapping | list | tuple):
        for below in value.values() if isinstance(value, Mapping) else value:
            yield from _files(below, there=there)
    elif isinstance(value, str) and ENDING in value:
        yield from (name for name in _list_names(value) if not there or _path(name).is_file())
    elif isinstance(value, str) and not there and _TOOLS.fullmatch(value):
        yield value


def _map(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _map(below, change) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [_map(below, change) for below in value]
    return _replace(value, change) if isinstance(value, str) and ENDING in value else value
