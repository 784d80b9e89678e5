"""Copies of the Python files that a run's settings name (`env=file.py:Class`, any plug-in), in its folder's `code/`.

A path that a setting has may be relative, or be gone a month later. Where it leads nowhere, the copy in the run's
folder is used: so a run is resumed, repeated and replayed from any working directory and machine. Where the file is
there it is used as it is now, and a change since is told. Its settings keep the names that were given. Copies are of
single files: what a file imports or reads beside itself has to be there.

`code/index.json` has for each name the copy's path below `code/` and its SHA-256.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.train.files import write_atomically

FOLDER = "code"
INDEX = "index.json"
ENDING = ".py"


def keep(run: Path, settings: Mapping[str, Any]) -> None:
    """Copy the files that settings name into a run's folder, unless they are as they were.

    Raises:
        OSError: a copy can't be written.
    """
    index = _index(run)
    for name in dict.fromkeys(_files(settings)):
        data = Path(name).expanduser().read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if index.get(name, {}).get("sha256") == digest:
            continue
        file = f"{digest[:12]}/{Path(name).name}"
        (run / FOLDER / file).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(run / FOLDER / file, data)
        index[name] = {"file": file, "sha256": digest}
        write_atomically(run / FOLDER / INDEX, json.dumps(index, indent=1).encode())


def changes(run: Path, settings: Mapping[str, Any]) -> Iterator[str]:
    """Which files changed since a run used them, and which are gone, so that their copies are used, in words."""
    index = _index(run)
    for name in dict.fromkeys(_files(named(run, settings), there=False)):
        if (known := index.get(name)) is None:
            continue
        copy, file = run / FOLDER / known["file"], Path(name).expanduser()
        if not file.is_file():
            yield f"{name} is not there: its copy {copy} is used"
        elif hashlib.sha256(file.read_bytes()).hexdigest() != known["sha256"]:
            yield f"{name} changed since this run used it; what it was is in {copy}"


def usable(run: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in which names that lead nowhere are those of a run's copies.

    Raises:
        ConfigError: a copy is not as it was written.
    """
    index = _index(run)

    def copied(text: str) -> str:
        name, colon, rest = _split(text)
        known = index.get(name)
        if known is None or Path(name).expanduser().is_file():
            return text
        file = (run / FOLDER / known["file"]).resolve()
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != known["sha256"]:
            raise ConfigError(f"{name} is not there, and its copy {file} is missing or was changed")
        return f"{file}{colon}{rest}"

    return _mapped(settings, copied) if index else dict(settings)


def named(run: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in which a run's copies have the names that were given; the inverse of `usable`."""
    names = {str((run / FOLDER / known["file"]).resolve()): name for name, known in _index(run).items()}

    def given(text: str) -> str:
        file, colon, rest = _split(text)
        return f"{names[file]}{colon}{rest}" if file in names else text

    return _mapped(settings, given) if names else dict(settings)


def files(settings: Mapping[str, Any]) -> list[str]:
    """The Python files that settings name, there or not."""
    return list(_files(settings, there=False))


def digests(run: Path) -> dict[str, str]:
    """The SHA-256 of the newest copy of each name."""
    return {name: known["sha256"] for name, known in _index(run).items()}


def has(run: Path, name: str, digest: str) -> bool:
    """Whether a run has the copy of a file that had a digest."""
    file = run / FOLDER / digest[:12] / Path(name).name
    return file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == digest


def _index(run: Path) -> dict[str, dict[str, str]]:
    file = run / FOLDER / INDEX
    try:
        found: dict[str, dict[str, str]] = json.loads(file.read_bytes())
        return {name: {key: str(known[key]) for key in ("file", "sha256")} for name, known in found.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{file} is damaged") from None


def _split(text: str) -> tuple[str, str, str]:
    """The path of a Python file that a setting names, and what follows it."""
    name, colon, rest = text.strip().rpartition(":")
    return (name, colon, rest) if name.endswith(ENDING) else (text, "", "")


def _files(value: Any, *, there: bool = True) -> Iterator[str]:
    """The files that settings name; with `there` those that exist."""
    if isinstance(value, Mapping | list | tuple):
        for below in value.values() if isinstance(value, Mapping) else value:
            yield from _files(below, there=there)
    elif isinstance(value, str) and ENDING in value:
        name = _split(value)[0]
        if name.endswith(ENDING) and (not there or Path(name).expanduser().is_file()):
            yield name


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _mapped(below, change) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(below, change) for below in value]
    return change(value) if isinstance(value, str) and ENDING in value else value
