"""Environment variables of the process that a run is started from, for its workers on other machines.

Ray gives an actor those of the node's `ray start`. Values may be secrets: they go with the actor's arguments, and are
written nowhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

PATH = "PYTHONPATH"


def passed(names: Iterable[str]) -> dict[str, str]:
    """This process's variables that have one of the names (`*` stands for any text), and its import path."""
    chosen = list(names)
    found = {name: value for name, value in os.environ.items() if any(fnmatchcase(name, each) for each in chosen)}
    folders = [str(Path(each).absolute()) for each in os.environ.get(PATH, "").split(os.pathsep) if each]
    return {**found, PATH: os.pathsep.join(folders)}


def take(variables: Mapping[str, str]) -> None:
    """Set another process's variables here; its import path comes before this one's own."""
    own = {**os.environ, **variables}
    both = dict.fromkeys(each for source in (variables, os.environ) for each in source.get(PATH, "").split(os.pathsep))
    os.environ.update(own | {PATH: os.pathsep.join(filter(None, both))})
