"""The functions that an environment's class is written with, and their defaults."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from agentrl.envs.base import Env
from agentrl.tools.tool import mark_of


def empty_defaults(env: Env) -> set[tuple[str, str]]:
    """The parameters whose default is an empty list or mapping, by function."""
    return {
        (name, parameter.name)
        for name, function in functions(type(env.unwrapped))
        for parameter in inspect.signature(function).parameters.values()
        if isinstance(parameter.default, (list, dict, set)) and not parameter.default
    }


def functions(cls: type) -> Iterator[tuple[str, Any]]:
    """The functions of a class and its bases below `Env`, tools included, by `Class.name`."""
    for base in cls.__mro__:
        if base is Env or not issubclass(base, Env):
            continue
        for name, member in vars(base).items():
            mark = mark_of(member)
            function = mark.function if mark is not None else getattr(member, "__func__", member)
            if inspect.isfunction(function):
                yield f"{base.__name__}.{name}", function
