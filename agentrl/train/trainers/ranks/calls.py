"""One call on all ranks at once, from any process that reaches them.

A rank that raises, dies or times out ends the call on all, because the others wait for it in a collective. The process
that started the ranks then ends them; another one closes its connections, and it is for the first to end the ranks.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor

from agentrl import faults
from agentrl.cluster import Address, Connection, connect
from agentrl.cluster.wire.connection import Calling
from agentrl.errors import AgentRLError, DeadlineExceeded, InfraError, TrainerError, TrainerTimeout

GRACE = 5.0
"""Seconds for other ranks to report once one has failed: often theirs is the cause."""
Reply = tuple[Any, Exception | None]
"""A rank's answer, or its error; neither where the call was ended because of another rank."""


class RankCalls(ABC):
    """Calls ranks that are workers of a cluster."""

    def __init__(self, ranks: Sequence[Calling], timeout: float | None) -> None:
        self._ranks, self.timeout = ranks, timeout
        self._use, self._silent = "", ""
        self._closed = threading.Event()

    @property
    def alive(self) -> bool:
        """True while the ranks can be called."""
        return not self._closed.is_set()

    @abstractmethod
    def close(self) -> None:
        """Call them no more; idempotent."""

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of every rank; returns rank 0's answer.

        Raises:
            AgentRLError: a rank raised it.
            TrainerError: a rank raised something else, with its traceback, or died, or was silent for too long.
            TrainerTimeout: some rank did not answer in time.
        """
        return self.call_each(method, [args] * len(self._ranks))

    def call_each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> Any:
        """`call` with arguments of its own for each rank."""
        pairs = zip(self._ranks, arguments, strict=True)
        calls = [partial(rank.run, "run", method, args, timeout=self.timeout) for rank, args in pairs]
        return self._each(method, calls, lambda: faults.point("trainer.call"))

    def stream(self, method: str, *args: Any) -> Iterator[tuple[str, Tensor]]:
        """Call a method that yields named tensors on rank 0; raises as `call` does.

        Where the caller stops early, the rest is received and dropped: every rank goes through to the end.
        """
        with self._one_call(method, "weights are being read from"), ThreadPoolExecutor(len(self._ranks)) as threads:
            first, *rest = (rank.iterate("tensors", method, args, timeout=self.timeout) for rank in self._ranks)
            others = threads.map(self._reply, [partial(drain, items) for items in rest])
            item, error = self._reply(partial(next, first, None))
            try:
                while item is not None:
                    yield item
                    item, error = self._reply(partial(next, first, None))
            finally:
                own = (None, error) if error else self._reply(partial(drain, first))
                self._check(method, [own, *others])

    @contextmanager
    def _one_call(self, method: str, use: str = "another call is made on") -> Iterator[None]:
        if not self.alive:
            if self._silent:
                raise TrainerError(f"{method}: {self._silent}")
            raise InfraError(f"{method}: the trainer is closed")
        if self._use:
            raise InfraError(f"{method}: {self._use} the ranks, which run one call at a time")
        self._use = use
        try:
            yield
        finally:
            self._use = ""

    def _each(self, method: str, calls: Sequence[Callable[[], Any]], begun: Callable[[], object] | None = None) -> Any:
        """Make one call of each rank; rank 0's answer. `begun` is called once all of them have begun."""
        with self._one_call(method), ThreadPoolExecutor(len(calls)) as threads:
            replies = threads.map(self._reply, calls)
            if begun is not None:
                begun()
            return self._check(method, list(replies))

    def _reply(self, call: Callable[[], Any]) -> Reply:
        """The reply to a call of one rank; where it failed, the others have seconds to report before they are ended."""
        try:
            return call(), None
        except Exception as error:
            if not self.alive:
                return None, None
            if len(self._ranks) > 1:
                ending = threading.Timer(GRACE, self.close)
                ending.daemon = True
                ending.start()
            return None, error

    def _check(self, method: str, replies: Sequence[Reply]) -> Any:
        """Rank 0's answer; where a rank failed, all are ended, except the only one where it refused."""
        failed = {rank: error for rank, (_, error) in enumerate(replies) if error is not None}
        if not failed and self.alive:
            return replies[0][0]
        refusals = [e for e in failed.values() if isinstance(e, AgentRLError) and not isinstance(e, InfraError)]
        if len(replies) > 1 or not refusals:
            self.close()
        if refusals:
            raise refusals[0]
        late = failed and all(isinstance(error, DeadlineExceeded) for error in failed.values())
        reports = "\n".join(f"rank {rank} of {len(replies)}: {error}" for rank, error in failed.items())
        raise (TrainerTimeout if late else TrainerError)(
            f"{method}: {reports or self._silent or 'the trainer was closed'}"
        )


class ConnectedRanks(RankCalls):
    """Ranks that another process has started.

    Raises:
        TrainerError: a rank can't be reached.
    """

    def __init__(self, addresses: Sequence[Address], timeout: float | None) -> None:
        self._connections: list[Connection] = []
        super().__init__(self._connections, timeout)
        try:
            for address in addresses:
                self._connections.append(connect(address))
        except InfraError as error:
            self.close()
            raise TrainerError(str(error)) from None

    def close(self) -> None:
        self._closed.set()
        for connection in self._connections:
            connection.close(InfraError("the trainer is closed"))


def drain(items: Iterator[Any]) -> None:
    """Receive the remaining items, and drop them."""
    for _ in items:
        pass
