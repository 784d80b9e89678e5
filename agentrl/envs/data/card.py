"""The files of a data set by its card: the `configs` in the front matter of a README.md, as Hugging Face has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import yaml

NAME = "README.md"
DEFAULT = "default"
MOST_TEXT = 1 << 20
"""Characters of a card that are read."""


def declared_files(card: str, config: str, names: Sequence[str]) -> dict[str, str] | None:
    """The split of each file that a card declares; None where it declares none.

    Args:
        card: the text of the README.md.
        config: which configuration; '': the only one, or that of the name `default`, or one with `default: true`.
        names: the data set's files.

    Raises:
        KeyError: there are several, and none of that name; its arguments are their names.
    """
    found = {str(each.get("config_name", DEFAULT)): each for each in _configs(card)}
    if not found:
        return None
    named = [name for name, each in found.items() if each.get("default") is True]
    chosen = config or next((name for name in (*named, DEFAULT) if name in found), next(iter(found)))
    if chosen not in found or (not config and len(found) > 1 and chosen not in (*named, DEFAULT)):
        raise KeyError(*sorted(found))
    patterns = list(_patterns(found[chosen].get("data_files")))
    files = {name: split for split, pattern in patterns for name in names if _fits(name, pattern)}
    return files or None


def _configs(card: str) -> list[Mapping[str, Any]]:
    """The configurations with files of their own."""
    parts = card[:MOST_TEXT].removeprefix("\ufeff").replace("\r\n", "\n").split("\n---", 1)
    if len(parts) < 2 or not parts[0].startswith("---"):
        return []
    try:
        about = yaml.safe_load(parts[0][3:])
    except yaml.YAMLError:
        return []
    found = about.get("configs") if isinstance(about, Mapping) else None
    return [each for each in found or () if isinstance(each, Mapping) and each.get("data_files")]


def _patterns(given: Any) -> Iterator[tuple[str, str]]:
    """The patterns of files, each with its split."""
    if isinstance(given, str):
        yield "train", given
    elif isinstance(given, Mapping):
        for split, paths in given.items():
            yield from ((str(split), path) for path in ([paths] if isinstance(paths, str) else paths))
    else:
        for each in given or ():
            if isinstance(each, str):
                yield "train", each
            elif isinstance(each, Mapping):
                yield from _patterns({str(each.get("split", "train")): each.get("path", [])})


def _fits(name: str, pattern: str) -> bool:
    pattern = pattern.removeprefix("./")
    return fnmatchcase(name, pattern) or fnmatchcase(name, pattern.replace("**/", ""))
