"""The effects of a call count until the call is over.

A thread can't be stopped, and a coroutine may ignore its cancellation: a tool that ran past its deadline goes on, and
what it does then would be credited to whichever turn is under way. So each call (of a tool, or a turn's answer) has a
token, which the context carries into threads and tasks that the call begins, and which is revoked when the call ends in
whatever way. An effect of a revoked call is dropped, counted, and told once.

A thread that was begun by other means (`run_in_executor`, `threading.Thread`) has no token. What it does counts, until
a call of the episode was cut off: from then on nobody can tell whose it is, and it is dropped as well.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType

from agentrl.errors import ToolError, ToolTimeout

logger = logging.getLogger(__name__)
_current: ContextVar[_Call | None] = ContextVar("call", default=None)
_told: set[tuple[str, str]] = set()


class Effects:
    """The effects of one episode's calls.

    Attributes:
        late: effects that were dropped, since their call was over.
        outlived: calls whose thread went on when they were over.
    """

    def __init__(self) -> None:
        self.late = 0
        self.outlived = 0
        self._cut_off = False
        self._threads = 0
        self._lock = threading.Lock()

    @property
    def under_way(self) -> bool:
        """True while threads of the episode's calls are running."""
        return self._threads > 0

    def call(self, name: str) -> _Call:
        """A call, for as long as the block lasts."""
        return _Call(name, self, _current.get())

    def apply(self, what: str, effect: Callable[[], None]) -> None:
        """Have an effect, unless the call that it belongs to is over.

        Args:
            what: what it is, for the warning.
            effect: has it; quick, and calls nothing of a user's.
        """
        call = _current.get()
        with self._lock:
            if self._counts(call):
                effect()
                return
        self._drop(call, what)

    def require(self, what: str) -> None:
        """Refuse what a call that is over can't begin any more; ToolError where it is over."""
        call = _current.get()
        if not self._counts(call):
            self._drop(call, what)
            raise ToolError(f"{what}: the call that asks for it is over")

    def _counts(self, call: _Call | None) -> bool:
        return not self._cut_off if call is None else call.is_live

    def _drop(self, call: _Call | None, what: str) -> None:
        with self._lock:
            self.late += 1
        name = "a thread" if call is None else call.name
        if (name, what) in _told:
            return
        _told.add((name, what))
        if call is None:
            logger.warning(
                "%s was called in a thread without its call's context, after a call of the episode was cut off: it is "
                "dropped (asyncio.to_thread keeps the context)",
                what,
            )
        else:
            logger.warning("%s was called by %r after that call was over: it is dropped", what, name)


class _Call:
    """One call; its block is the time in which its effects count.

    Attributes:
        name: of the tool, or what else is called.
    """

    __slots__ = ("_effects", "_outer", "_over", "_threads", "_token", "name")

    def __init__(self, name: str, effects: Effects, outer: _Call | None) -> None:
        self.name, self._effects, self._outer = name, effects, outer
        self._over, self._threads = False, 0

    @property
    def is_live(self) -> bool:
        """True while neither this call is over, nor one that it is a part of."""
        return not self._over and (self._outer is None or self._outer.is_live)

    def __enter__(self) -> _Call:
        self._token: Token[_Call | None] = _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.reset(self._token)
        effects = self._effects
        with effects._lock:
            self._over = True
            effects.outlived += self._threads > 0
            effects._cut_off |= kind is not None and issubclass(kind, ToolTimeout | asyncio.CancelledError)

    def thread_begins(self) -> None:
        self._count_thread(1)

    def thread_ends(self) -> None:
        self._count_thread(-1)

    def _count_thread(self, change: int) -> None:
        with self._effects._lock:
            self._threads += change
            self._effects._threads += change


def current() -> _Call | None:
    """The call that this context belongs to."""
    return _current.get()
