"""Retrieval servers that belong to this process: started, watched, and ended with it.

Environments exist for one episode and can't own a server; so there is one for each index in the process. The listening
socket stays in this process: while a server that died is started again, new requests wait in the socket's queue. Those
that it was answering fail, and their callers send them again (see `client`).
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
from pathlib import Path

from agentrl.cluster.restarted_server import RestartedServer, Restarts
from agentrl.cluster.server import ServerProcess
from agentrl.errors import RetrievalError
from agentrl.retrieval.index import read_manifest
from agentrl.retrieval.server import CACHED, REFUSED, TIMEOUT, listen
from agentrl.tools.threads import in_forked_child

logger = logging.getLogger(__name__)

MOST, WITHIN = 5, 180.0
"""A server is started again so often within so many seconds; then it is given up."""
PAUSE = 0.5
"""Seconds before a server is started again."""
ROLE = "retriever"

_services: dict[tuple[Path, int, float], Service] = {}
_lock = threading.Lock()


@in_forked_child
def _forget_services() -> None:
    """They belong to the parent."""
    global _lock
    _services.clear()
    _lock = threading.Lock()


class Service:
    """One server, in a process of its own, that is started again whenever it ends.

    Attributes:
        url: its address, the same after every restart.
        restarts: how often it was started again.

    Raises:
        ConfigError: there is no index in that folder.
    """

    def __init__(self, index: Path, cached: int = CACHED, timeout: float = TIMEOUT) -> None:
        read_manifest(index)
        self.index = index
        self._bound = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._bound.getsockname()[1]}"
        self._options = ["--cached", str(cached), "--timeout", str(timeout)]
        self._server = RestartedServer(
            f"the retrieval server of {index}",
            self._start,
            lambda end: logger.warning("%s; it is started again", end),
            restarts=Restarts(MOST, WITHIN),
            pause=PAUSE,
            hopeless=REFUSED,
        )
        self._server.given_up.add_done_callback(lambda given_up: logger.error(given_up.result()))

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._server.process.pid

    @property
    def restarts(self) -> int:
        """The number of times that it was started again."""
        return self._server.restarts

    def check(self) -> None:
        """Do nothing, unless the server was given up.

        Raises:
            RetrievalError: it was; the message has the end of its output.
        """
        if self._server.given_up.done():
            raise RetrievalError(self._server.given_up.result())

    def close(self) -> None:
        """End the server; harmless the second time."""
        self._server.close(0.0)
        self._bound.close()

    def _start(self) -> ServerProcess:
        shared = self._bound.fileno()
        command = [sys.executable, "-m", "agentrl.retrieval", "--index", str(self.index), "--fd", str(shared)]
        return ServerProcess(ROLE, [*command, *self._options], descriptors=[shared], kind=ROLE)


def service(index: Path, cached: int = CACHED, timeout: float = TIMEOUT) -> Service:
    """This process's server of an index, started the first time.

    Raises:
        ConfigError: there is no index in that folder.
        RetrievalError: the server was given up.
    """
    key = index.expanduser().resolve(), cached, timeout
    with _lock:
        if key not in _services:
            if not _services:
                atexit.register(close_all)
            _services[key] = Service(*key)
        found = _services[key]
    found.check()
    return found


def close_all() -> None:
    """End every server of this process; the next search starts a new one."""
    with _lock:
        closing = list(_services.values())
        _services.clear()
    for one in closing:
        one.close()
