"""The Docker daemon, called through docker-py in a few threads, each call with a deadline.

docker-py blocks, so its calls run on threads, whose number also bounds the load on the daemon. Its exceptions become
DaemonError here and nowhere else; a call past its deadline is abandoned (its thread ends with the client's own
timeout).
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from agentrl.common.concurrency import take_error
from agentrl.errors import ConfigError, require_extra
from agentrl.tools.sandbox.base import DaemonError
from agentrl.tools.sandbox.runner.transport import AttachStream, daemon_address, default_daemon
from agentrl.tools.threads import in_forked_child

T = TypeVar("T")

WORKERS = 8
CALL_TIMEOUT = 60.0

_daemons: dict[str, Daemon] = {}
_lock = threading.Lock()


@in_forked_child
def _forget_daemons() -> None:
    """Their threads are in the parent only, and two processes can't share a connection."""
    global _lock
    _daemons.clear()
    _lock = threading.Lock()


class ImageMissing(ConfigError):
    """The daemon has no such image: it must be built or pulled."""


class Daemon:
    """One daemon. `api` is docker-py's low-level client, for calls made through `call`."""

    def __init__(self, address: str) -> None:
        with require_extra("docker", "docker"):
            import docker
        self.address = address
        self._threads = ThreadPoolExecutor(WORKERS, thread_name_prefix="agentrl-docker")
        daemon_address(address)  # raises where streams can't be attached
        try:
            self.api: Any = docker.APIClient(
                base_url=address, version="auto", timeout=CALL_TIMEOUT, num_pools=WORKERS, max_pool_size=WORKERS
            )
        except Exception as error:
            raise DaemonError(
                f"no Docker daemon at {address} (start one, or name one by DOCKER_HOST): {error}"
            ) from None
        self.version: str = self.api.api_version
        self._remapped: bool | None = None

    async def call(self, work: Callable[..., T], *args: Any, timeout: float = CALL_TIMEOUT, **kwargs: Any) -> T:
        """Run one blocking call.

        Raises:
            ImageMissing: the image is not there.
            DaemonError: the daemon refused, failed, or took longer than `timeout` seconds.
        """
        loop = asyncio.get_running_loop()
        under_way = loop.run_in_executor(self._threads, functools.partial(translate_errors, work, *args, **kwargs))
        try:
            return await asyncio.wait_for(asyncio.shield(under_way), timeout)
        except TimeoutError:
            under_way.add_done_callback(take_error)
            raise DaemonError(f"the Docker daemon at {self.address} took longer than {timeout:g} s") from None
        except asyncio.CancelledError:
            under_way.add_done_callback(take_error)
            raise

    async def remapped(self) -> bool:
        """Return whether the daemon maps the containers' users to others (userns-remap, rootless); requested once."""
        if self._remapped is None:
            options = (await self.call(self.api.info)).get("SecurityOptions") or []
            self._remapped = any("userns" in option or "rootless" in option for option in options)
        return self._remapped

    async def attach(self, container: str, timeout: float) -> AttachStream:
        """The stream to a container's first process."""
        try:
            return await asyncio.wait_for(AttachStream.open(self.address, self.version, container), timeout)
        except TimeoutError:
            raise DaemonError(f"attaching took longer than {timeout:g} s") from None

    def finish(self) -> None:
        """Take no more calls, and wait for those that are under way; `api` can still be used."""
        self._threads.shutdown(cancel_futures=True)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.api.close()


def daemon(address: str | None = None) -> Daemon:
    """The process's one `Daemon` of an address (None: DOCKER_HOST, or the usual socket).

    Raises:
        DaemonError: it does not answer.
        MissingExtra: docker-py is not installed.
    """
    key = address or default_daemon()
    with _lock:
        if key not in _daemons:
            _daemons[key] = Daemon(key)
        return _daemons[key]


async def connect(address: str | None = None) -> Daemon:
    """`daemon`, without blocking the loop where it has to connect first."""
    known = _daemons.get(address or default_daemon())
    return known if known is not None else await asyncio.to_thread(daemon, address)


def available(address: str | None = None) -> bool:
    """Return whether a daemon answers (for tests, and for `agentrl` to say what is missing)."""
    try:
        daemon(address).api.ping()
    except Exception:
        return False
    return True


def translate_errors(work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call the client; its errors are raised as ours, see `Daemon.call`."""
    import requests
    from docker import errors

    try:
        return work(*args, **kwargs)
    except errors.ImageNotFound as error:
        raise ImageMissing(f"image is not there: {error.explanation or error}") from None
    except errors.APIError as error:
        text = str(error.explanation or error)
        if "no such image" in text.lower():
            raise ImageMissing(f"image is not there: {text}") from None
        raise DaemonError(f"the Docker daemon refused: {text}") from error
    except (errors.DockerException, requests.RequestException, OSError) as error:
        raise DaemonError(f"the Docker daemon failed: {error}") from error
