"""Names of a module that are imported when they are first asked for, because what they need takes seconds to load."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def import_later(module: str, *homes: str) -> Callable[[str], Any]:
    """A module's `__getattr__`.

    Args:
        module: the module's own name; its `__all__` has the names.
        homes: the modules that have them; a name is looked for in one after another.
    """

    def load(name: str) -> Any:
        own = sys.modules[module]
        home = next((home for home in homes if name in own.__all__ and hasattr(import_module(home), name)), None)
        if home is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(home), name)
        setattr(own, name, value)
        return value

    return load
