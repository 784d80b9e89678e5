"""Watches whether the head of a Ray cluster still answers.

Asked of its port, not of Ray: without its head Ray's calls wait for a minute, and then end the process from C++ code.
"""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import Future

from agentrl.errors import InfraError

LOST_SECONDS = 10.0
"""Seconds that the head may not answer before a run on its cluster ends."""
_TICK = 1.0


class Head:
    """Watches a head from a thread of its own.

    Args:
        address: host:port of its control store (GCS).
        seconds: for so long it may not answer.

    Attributes:
        lost: gets the error once it has not answered for that long.
    """

    def __init__(self, address: str, seconds: float = LOST_SECONDS) -> None:
        self.address, self._seconds = address, seconds
        host, _, port = address.rpartition(":")
        self._at = host.strip("[]"), int(port)
        self.lost: Future[InfraError] = Future()
        self._over = threading.Event()
        self._watching = threading.Thread(target=self._watch, name="agentrl-head", daemon=True)
        self._watching.start()

    def require(self) -> None:
        """Ask the head now, before a call that would wait for it; InfraError where it does not answer."""
        if self.lost.done() or not self.answers():
            raise self._error()

    def close(self) -> None:
        """Watch no longer; a head that does not answer now is lost. Idempotent."""
        self._over.set()
        self._watching.join()
        if not self.lost.done() and not self.answers():
            self.lost.set_result(self._error())

    def answers(self) -> bool:
        """Return whether the head answers now; a network that drops packets is waited for, half of the seconds."""
        try:
            socket.create_connection(self._at, timeout=self._seconds / 2).close()
        except OSError:
            return False
        return True

    def _watch(self) -> None:
        answered = time.monotonic()
        while not self._over.wait(_TICK):
            if self.answers():
                answered = time.monotonic()
            elif time.monotonic() - answered > self._seconds:
                self.lost.set_result(self._error())
                return

    def _error(self) -> InfraError:
        return InfraError(
            f"the head of the Ray cluster at {self.address} does not answer: without it no worker can be started or "
            "replaced. Start a cluster, and resume the run there"
        )
