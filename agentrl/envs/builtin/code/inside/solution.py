"""The judge's client of the worker, and handles of objects in the worker."""

from __future__ import annotations

import builtins
import collections
import os
import subprocess
import sys
from typing import Any

from agentrl.envs.builtin.code.inside.plain import DECIDING, pack, receive, send, unpack

BOOT = "import sys; space = {'__name__': 'inside'}; exec(sys.argv[1], space); space['main'](*sys.argv[1:])"
"""Runs the program that is its first argument, as the role that is its second."""
KEEPING = {"extent", "getattr", "bool", "str", "repr"}
"""Operations that do not change an object's items."""


class SolutionLost(BaseException):
    """The worker ended or broke the protocol. Not an `Exception`, which a test could catch."""


class Solution:
    """The judge's client of the worker."""

    def __init__(self, program: str) -> None:
        """Start it without the judge's environment and descriptors, but for two pipes."""
        incoming, to = os.pipe()
        source, outgoing = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", BOOT, program, "worker", str(incoming), str(outgoing)],
            pass_fds=(incoming, outgoing),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
        )
        os.close(incoming)
        os.close(outgoing)
        self._to, self._source = os.fdopen(to, "wb"), os.fdopen(source, "rb")
        self._handles: dict[int, Handle] = {}
        self._extents: dict[int, Any] = {}
        self.lost: SolutionLost | None = None

    def request(self, *message: Any, answer: bool = False) -> Any:
        """Send a request and return its result as data; `answer` is set on the handles in it (`Handle`).

        Raises:
            SolutionLost: there is no result; kept in `lost`, whatever a test catches.
            Exception: what the solution raised, where it is a built-in exception.
        """
        try:
            return self._request(message, answer)
        except SolutionLost as error:
            self.lost = error
            raise

    def _request(self, message: Any, answer: bool) -> Any:
        try:
            send(self._to, message)
            reply = receive(self._source)
            if "raised" not in reply:
                return unpack(reply["value"], lambda number: self._handle(number, answer))
            kind, words = getattr(builtins, str(reply["raised"])), str(reply["words"])
            raises = isinstance(kind, type) and issubclass(kind, Exception)
        except BaseException as error:
            raise SolutionLost(
                "the solution's process ended" if isinstance(error, (EOFError, OSError)) else "no data"
            ) from None
        if not raises:
            raise SolutionLost(words)
        if message[0] != "next" and issubclass(kind, (StopIteration, StopAsyncIteration)):
            raise RuntimeError(f"the solution raised {words}")  # it would end a loop of the tests (cf. PEP 479)
        try:
            raised = kind(words)
        except Exception:  # UnicodeDecodeError and others take more arguments
            raised = Exception(words)
        raise raised

    def do(self, what: str, *operands: Any) -> Any:
        """One of `OPERATIONS`; the first operand is a handle."""
        if what not in KEEPING:
            self._extents.clear()
        return self.request(what, pack(operands, self._known), answer=operands[0]._answer)

    def extent(self, handle: Handle) -> Any:
        """An object's length and items, None where it has none; cached until an operation may change them."""
        if handle._number not in self._extents:
            size, items = self.do("extent", handle)
            if items is not None and int(size) != len(list(items)):
                raise ValueError(f"an object that has {size} items by its length gives {len(items)}")
            self._extents[handle._number] = size, items
        return self._extents[handle._number]

    def change(self, function: Handle, args: Any, kwargs: Any) -> None:
        """Call it for its effect on its arguments."""
        given, named = self.do("change", function, args, kwargs)
        pairs = [*zip(args, given), *((old, named.get(name)) for name, old in kwargs.items())]  # noqa: B905 (Python 3.8)
        for old, new in pairs:
            if isinstance(old, (list, bytearray)) and isinstance(new, type(old)):
                old[:] = new
            elif isinstance(old, collections.deque) and isinstance(new, collections.deque):
                old.clear()
                old.extend(new)
            elif (isinstance(old, dict) and isinstance(new, dict)) or (isinstance(old, set) and isinstance(new, set)):
                old.clear()
                old.update(new)

    def _handle(self, number: int, answer: bool) -> Handle:
        return self._handles.setdefault(number, Handle(self, number, answer))

    def _known(self, value: Any) -> int:
        if isinstance(value, Handle):
            return int(value._number)
        raise TypeError(f"a test can't hand a {type(value).__name__} to the solution")

    def end(self) -> None:
        """Kill it."""
        self._process.kill()


class Handle:
    """A handle of an object of the solution that isn't plain data; one for each object.

    `answer` is set for a function's result, or a part of it. The tests expect data there, so its methods that would
    decide a test (`DECIDING`) are refused; handles of classes that the tests name are not restricted.
    """

    __slots__ = ("_answer", "_number", "_solution")

    def __init__(self, solution: Solution, number: int, answer: bool) -> None:
        object.__setattr__(self, "_solution", solution)
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_answer", answer)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it in the worker."""
        return self._solution.do("call", self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self._answer and name in DECIDING:
            raise AttributeError(f"the answer is an object of the solution's own, whose {name}() would decide the test")
        return self._solution.do("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._solution.do("setattr", self, name, value)

    def __iter__(self) -> Any:
        size, items = self._solution.extent(self)
        if size is None:
            return self._solution.do("iter", self)
        if items is None:
            raise TypeError("an object of the solution's has a length and no items")
        return iter(items)

    def __next__(self) -> Any:
        return self._solution.do("next", self)

    def __len__(self) -> int:
        size, _ = self._solution.extent(self)
        if size is None:
            raise TypeError("an object of the solution's has no len()")
        return int(size)

    def __getitem__(self, key: Any) -> Any:
        return self._solution.do("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._solution.do("setitem", self, key, value)

    def __bool__(self) -> bool:
        return bool(self._solution.do("bool", self))

    def __str__(self) -> str:
        return str(self._solution.do("str", self))

    def __repr__(self) -> str:
        return str(self._solution.do("repr", self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other._number == self._number

    def __hash__(self) -> int:
        return hash(self._number)
