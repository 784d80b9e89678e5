"""The built-in tasks: small programs, each with a fault.

They need no download and no image but the default one. The test suite proves each of them in the sandbox: its
`fail_to_pass` fail at the base commit and pass after the reference solution, its `pass_to_pass` pass at both.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from agentrl.envs.builtin.swe.formats.harbor import read
from agentrl.envs.builtin.swe.task import SweTask
from agentrl.errors import unknown_name

FOLDER = Path(__file__).parent / "tasks"


@cache
def names() -> tuple[str, ...]:
    """Their names, in alphabetical order."""
    return tuple(sorted(path.parent.name for path in FOLDER.glob("*/task.toml")))


@cache
def load(name: str) -> SweTask:
    """One of them.

    Raises:
        UnknownName: there is none of that name.
    """
    if name not in names():
        raise unknown_name("software task", name, names())
    return read(FOLDER / name)


def builtin() -> list[SweTask]:
    """All of them, in the order of `names`."""
    return [load(name) for name in names()]
