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
import time
from pathlib import Path

from agentrl.cluster.server import ServerProcess
from agentrl.errors import RetrievalError, brief
from agentrl.retrieval.index import read_manifest
from agentrl.retrieval.server import CACHED, REFUSED, TIMEOUT, listen
from agentrl.tools.threads import in_forked_child

logger = logging.getLogger(__name__)

RESTARTS = 5
"""Times in a row that a server may end within `SOON` seconds before it is given up."""
SOON = 30.0
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
        self.restarts = 0
        self._options = ["--cached", str(cached), "--timeout", str(timeout)]
        self._failed: str | None = None
        self._closing = threading.Event()
        self._process = self._start()
        self._watcher = threading.Thread(target=self._watch, name="agentrl-retriever", daemon=True)
        self._watcher.start()

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    def check(self) -> None:
        """Do nothing, unless the server was given up.

        Raises:
            RetrievalError: it was; the message has the end of its output.
        """
        if self._failed is not None:
            raise RetrievalError(self._failed)

    def close(self) -> None:
        """End the server; harmless the second time."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._process.kill()
        self._watcher.join()
        self._bound.close()

    def _start(self) -> ServerProcess:
        shared = self._bound.fileno()
        command = [sys.executable, "-m", "agentrl.retrieval", "--index", str(self.index), "--fd", str(shared)]
        return ServerProcess(ROLE, [*command, *self._options], descriptors=[shared], kind=ROLE)

    def _watch(self) -> None:
        early = 0
        while True:
            began = time.monotonic()
            code = self._process.wait()
            written = brief(self._process.tail()) or "it wrote nothing"
            self._process.end()
            if self._closing.is_set():
                return
            early = early + 1 if time.monotonic() - began < SOON else 0
            what = f"the retrieval server of {self.index} ended with {code}: {written}"
            if early > RESTARTS or code == REFUSED:
                self._failed = f"{what} (it was started {early} times in a row)" if early > 1 else what
                logger.error(self._failed)
                return
            logger.warning("%s; it is started again", what)
            if self._closing.wait(PAUSE):
                return
            self._process = self._start()
            self.restarts += 1  # afterwards: then `pid` is the new server's


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
