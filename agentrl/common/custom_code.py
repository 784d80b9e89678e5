"""Python code that model folders bring (`auto_map`): whether it may run here, and in the processes started from here.

It would run with all rights of the user, so it does only where the user says so (`model.trust_remote_code`). What is
allowed is the code, by the digests of its files: copies of the folder, checkpoints and exports are allowed with it, and
a file that changes has to be allowed anew. That lasts as long as the process; workers get it with their roles
(`cluster.base`). Code that a folder names in another repository never runs: nothing is fetched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentrl.common.untrusted import read_json

SETTING = "model.trust_remote_code=true"
"""The setting that allows it, as refusals name it."""
_NAMES = ("config.json", "tokenizer_config.json")
"""The files that may name code."""
_ELSEWHERE = "--"
"""Separates a repository from the class in it."""
_allowed: set[str] = set()


def allow(folder: Path) -> None:
    """Let the code in a model's folder run in this process and in those that it starts."""
    _allowed.update(_digests(folder).values())


def is_allowed(folder: Path) -> bool:
    """Return whether a folder brings code, and all of it may run."""
    named, found = list_named_classes(folder), _digests(folder)
    return bool(named and found) and not elsewhere(named) and _allowed.issuperset(found.values())


def list_granted() -> frozenset[str]:
    """The code that may run in this process, to be granted to another."""
    return frozenset(_allowed)


def grant(code: Iterable[str]) -> None:
    """Let run what another process may run (`list_granted`)."""
    _allowed.update(code)


def list_named_classes(folder: Path) -> dict[str, str]:
    """The classes that a folder's configurations name as its own code: by transformers' names of their kinds."""
    found: dict[str, str] = {}
    for name in _NAMES:
        try:
            settings = read_json((folder / name).read_text())
        except (OSError, ValueError):  # whoever needs the file says so
            continue
        found |= _classes(settings.get("auto_map") if isinstance(settings, dict) else None)
    return found


def elsewhere(named: Mapping[str, str]) -> str:
    """The repository of the first class that is not in the folder itself; '' where all are."""
    return next((ref.partition(_ELSEWHERE)[0] for ref in named.values() if _ELSEWHERE in ref), "")


def files(folder: Path) -> list[str]:
    """The names of the Python files in a folder that brings code; none in any other."""
    return sorted(_digests(folder)) if list_named_classes(folder) else []


def digest(folder: Path) -> str:
    """A digest of a folder's Python files; '' where it brings no code."""
    return " ".join(f"{name} {_digests(folder)[name]}" for name in files(folder))


def refusal(folder: Path) -> str:
    """Say as a clause why a folder's code does not run here; '' where it may run, or there is none."""
    named = list_named_classes(folder)
    if not named or is_allowed(folder):
        return ""
    if repository := elsewhere(named):
        return (
            f"its code (auto_map) is in the repository {repository!r}, which is not fetched: put the files into the "
            "folder, and their names without the repository into auto_map"
        )
    if not (held := files(folder)):
        return f"its code (auto_map: {', '.join(sorted(set(named.values())))}) is not in the folder"
    return (
        f"it needs code of its own (auto_map: {', '.join(held)}), which runs only with {SETTING}, with all rights of "
        "yours: read it first"
    )


def _classes(auto_map: Any) -> dict[str, str]:
    """An `auto_map` with one class for each entry; tokenizers have two, either of which may be missing."""
    if not isinstance(auto_map, dict):
        return {}
    each = {kind: refs if isinstance(refs, list | tuple) else [refs] for kind, refs in auto_map.items()}
    return {f"{kind}{'.' * at}": ref for kind, refs in each.items() for at, ref in enumerate(refs) if ref}


def _digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.glob("*.py") if file.is_file()}
