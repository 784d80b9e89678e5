"""The worker: holds the submitted code, and does with it what the judge asks for."""

from __future__ import annotations

import builtins
import operator
import os
from typing import Any, Callable  # noqa: UP035 (of collections.abc before Python 3.9)

from agentrl.envs.code.inside.plain import pack, receive, send, unpack


def change(target: Any, args: Any, kwargs: Any) -> Any:
    """Call it for what it does to its arguments: these, afterwards."""
    target(*args, **kwargs)
    return args, kwargs


def extent(target: Any) -> Any:
    """How many items it says that it has, and these; None for what it can't do."""
    try:
        size = len(target)
    except TypeError:
        return None, None
    try:
        return size, list(target)
    except Exception:
        return size, None


OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda target, args, kwargs: target(*args, **kwargs),
    "change": change,
    "getattr": getattr,
    "setattr": setattr,
    "iter": iter,
    "next": next,
    "extent": extent,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "bool": bool,
    "str": str,
    "repr": repr,
}
"""What can be done with a handle. Comparing, reckoning and looking for a value are not among it: the object would be
told what is expected, and decide the test."""


def worker(incoming: int, outgoing: int) -> None:
    """Hold the submitted code, and do with it what the judge asks for."""
    source, to = os.fdopen(incoming, "rb"), os.fdopen(outgoing, "wb")
    space: dict[str, Any] = {"__name__": "solution", "__builtins__": builtins}
    kept: list[Any] = []
    numbers: dict[int, int] = {}

    def keep(value: Any) -> int:
        if id(value) not in numbers:  # what is kept lives on, so that no id is used twice
            numbers[id(value)] = len(kept)
            kept.append(value)
        return numbers[id(value)]

    def do(asked: list[Any]) -> Any:
        what, rest = asked[0], asked[1:]
        if what == "load":
            exec(compile(rest[0], "<solution>", "exec"), space)
            return None
        if what == "global":
            return space[rest[0]]
        return OPERATIONS[what](*unpack(rest[0], kept.__getitem__))

    while True:
        asked = receive(source)
        try:
            answer = {"value": pack(do(asked), keep)}
        except BaseException as error:
            builtin = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
            answer = {"raised": builtin.__name__, "words": words_of(error)}
        send(to, answer)


def words_of(error: BaseException) -> str:
    """An exception in words, even where its own are broken."""
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except BaseException:
        return type(error).__name__
