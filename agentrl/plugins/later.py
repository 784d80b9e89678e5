"""Names of a module that are imported when they are first asked for, because what they need takes seconds to load."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def import_later(module: str, *places: str) -> Callable[[str], Any]:
    """A module's `__getattr__`.

    Args:
        module: the module's own name.
        places: where each of its names is, as `package.module:NAME`.
    """
    homes = {place.partition(":")[2]: place.partition(":")[0] for place in places}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    return load
