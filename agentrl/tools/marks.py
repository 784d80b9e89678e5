"""Marks of methods (`@tool`, `@reward`) that a class has lost: it has a tool less then, or no reward, in silence."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

Mark = Callable[[Any], Any]
"""Gives a function's mark, or None."""


def find_lost(cls: type, mark: Mark, decorator: str) -> list[str]:
    """Say of each method of a class how it has lost its mark; none of a method that is replaced by None.

    Args:
        cls: the class.
        mark: gives a function's mark.
        decorator: what sets it, for the sentences.
    """
    found = []
    for name in dict.fromkeys(name for base in cls.__mro__[:-1] for name in vars(base)):
        owner, member = next((base, vars(base)[name]) for base in cls.__mro__ if name in vars(base))
        if mark(_function(member)) is not None:
            continue
        where = f"{owner.__name__}.{name}"
        if any(mark(each) is not None for each in _inside(member)):
            found.append(f"{where}: {decorator} is hidden by what stands above it: write {decorator} on top")
        elif member is not None and (marked := _overridden(cls, owner, name, mark)):
            found.append(
                f"{where} has no {decorator} and takes the place of {marked}, which has one: mark it as well, or "
                f"write `{name} = None`"
            )
    return found


def _function(member: Any) -> Any:
    return member.__func__ if isinstance(member, staticmethod | classmethod) else member


def _inside(member: Any) -> Iterator[Any]:
    """The functions within what a decorator made of one."""
    if isinstance(member, property):
        yield member.fget
    elif isinstance(member, functools.cached_property | functools.partialmethod):
        yield member.func
    elif inspect.isfunction(made := _function(member)):
        for cell in made.__closure__ or ():
            try:
                yield from (each for each in [cell.cell_contents] if inspect.isfunction(each))
            except ValueError:  # nothing is in it yet
                continue


def _overridden(cls: type, owner: type, name: str, mark: Mark) -> str:
    above = cls.__mro__[cls.__mro__.index(owner) + 1 :]
    base = next((base for base in above if name in vars(base)), None)
    return f"{base.__name__}.{name}" if base and mark(_function(vars(base)[name])) is not None else ""
