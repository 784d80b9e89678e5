"""The worker: runs the submitted code for the judge's requests."""

from __future__ import annotations

import builtins
import operator
import os
from typing import Any, Callable  # noqa: UP035 (of collections.abc before Python 3.9)

from agentrl.envs.builtin.code.inside.plain import pack, receive, send, unpack


def change(target: Any, args: Any, kwargs: Any) -> Any:
    """Call it for its effect on its arguments; returns these."""
    target(*args, **kwargs)
    return args, kwargs


def extent(target: Any) -> Any:
    """Its length and its items; None where it has none."""
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
"""Operations on a handle. Comparison, arithmetic and membership are not among them: the object would get the expected
value, and decide the test."""


def worker(incoming: int, outgoing: int) -> None:
    """Load the submitted code, and answer the judge's requests."""
    source, to = os.fdopen(incoming, "rb"), os.fdopen(outgoing, "wb")
    space: dict[str, Any] = {"__name__": "solution", "__builtins__": builtins}
    kept: list[Any] = []
    numbers: dict[int, int] = {}

    def keep(value: Any) -> int:
        if id(value) not in numbers:  # kept objects are never freed, so no id is reused
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
    """An exception as text, even where its `__str__` fails."""
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except BaseException:
        return type(error).__name__
