"""The sandboxes of this process's episodes: one pool for all of them, filled before they are needed.

A container takes a large part of a second to start, a command in a running one a millisecond. So sandboxes are created
in the background when a step's tasks are sampled, and emptied and reused where the backend can verify that they are
empty (`Sandbox.reset`), unless `sandbox.reuse=never`. Environments exist for one episode and can't own a pool; it
belongs to the process, and its containers are removed at the process's end.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from agentrl import tracing
from agentrl.common.retries import retry
from agentrl.config import SandboxConfig
from agentrl.errors import ConfigError, SandboxError
from agentrl.tools.sandbox.base import Sandbox, Snapshot
from agentrl.tools.sandbox.pool import ANOTHER, SandboxPool
from agentrl.tools.sandbox.registry import backend
from agentrl.tools.sandbox.runner.loop import on_loop, sandbox_loop
from agentrl.tools.sandbox.spec import SandboxSpec
from agentrl.tools.threads import in_forked_child

logger = logging.getLogger(__name__)
T = TypeVar("T")

SPARE = 4
"""Idle sandboxes besides one for each running episode, for scoring while others are being emptied."""
WAIT = 600.0
"""Seconds that an episode waits for a sandbox: longer than a full queue of episodes takes."""
TRIES = 3
"""Attempts at a scoring, each in another sandbox."""
NO_DAEMON = (
    "env.sandbox=docker needs a Docker daemon, and none answers: start one (or point DOCKER_HOST at it), "
    "or say env.sandbox=subprocess, which isolates nothing"
)
HIDDEN = (
    "sandboxes have an empty writable tree at %s (tmpfs_mb), where the image %s has files: no command sees these. Have "
    "them elsewhere in the image, copy them in (Sandbox.write), or use writable_root=true and no tree at %s"
)

EXIT_SECONDS = 60.0
"""For removing the sandboxes at the end of the process."""
_at_exit: Callable[[Callable[[], None]], Any] = getattr(threading, "_register_atexit", atexit.register)
"""Ordinary exit handlers run too late: thread pools then take no work. `concurrent.futures` uses this one, too."""

_suppliers: dict[tuple[str, bool, int], Supplier] = {}
_config = SandboxConfig()
_lock = threading.Lock()


@in_forked_child
def _forget_suppliers() -> None:
    """Their sandboxes belong to the parent, which removes them."""
    global _lock
    _suppliers.clear()
    _lock = threading.Lock()


class Supplier:
    """Provides sandboxes of one backend, and measures how long episodes wait for them.

    Args:
        name: the backend's.
        reuse: whether released sandboxes are emptied and used again, where they can be.
        total: sandboxes alive at once; an idle one holds a megabyte or two.
    """

    def __init__(self, name: str, reuse: bool = True, total: int = SandboxConfig().total) -> None:
        self.name = name
        self.pool = SandboxPool(backend(name), total=total, creates=4, recycle=reuse)
        self.leased: set[str] = set()
        self._checked: set[str] = set()

    async def check(self, spec: SandboxSpec) -> None:
        """Check, once, whether sandboxes of a specification can be created here.

        Raises:
            ConfigError: there is no daemon, image or server; the message says what to do.
        """
        if self.name == "remote" and not self._checked:
            from agentrl.tools.sandbox.remote import backend as remote

            await on_loop(remote.server().check())
            self._checked.add(spec.key)
        if self.name != "docker" or spec.key in self._checked:
            return
        from agentrl.tools.sandbox.docker import images, reaper

        try:
            await images.require(spec.image, spec.daemon)
        except SandboxError:
            raise ConfigError(NO_DAEMON) from None
        if not self._checked:
            await reaper.watch(spec.daemon)  # containers of killed runs, and of what is killed beside this process
        if spec.key in self._checked:  # by another session meanwhile
            return
        self._checked.add(spec.key)
        with contextlib.suppress(SandboxError):
            for tree in await images.find_hidden(spec.image, spec.trees, spec.daemon):
                logger.warning(HIDDEN, tree, spec.image, tree)

    async def prepare(self, spec: SandboxSpec, count: int) -> None:
        """Keep this many idle sandboxes from now on; returns at once."""
        await self.pool.prepare(spec, min(count + SPARE, self.pool.total))

    async def acquire(self, spec: SandboxSpec) -> tuple[Sandbox, float]:
        """A sandbox that was not used since it was created or emptied, and the seconds waited for it."""
        began = time.monotonic()
        sandbox = await self.pool.acquire(spec, WAIT)
        self.leased.add(sandbox.id)
        return sandbox, time.monotonic() - began

    async def acquire_restored(self, spec: SandboxSpec, snapshot: Snapshot) -> tuple[Sandbox, float]:
        """A sandbox with a snapshot's files, and the seconds waited for it."""
        sandbox, waited = await self.acquire(spec)
        try:
            await sandbox.restore(snapshot)
        except BaseException:
            await asyncio.shield(self.release(sandbox))
            raise
        return sandbox, waited

    async def release(self, sandbox: Sandbox) -> None:
        """Return one; it is emptied or removed in the background."""
        self.leased.discard(sandbox.id)
        await self.pool.release(sandbox)

    async def release_opened(self, opening: asyncio.Task[Sandbox] | None) -> None:
        """Release the sandbox that a task has acquired or is acquiring; a caller's cancellation does not stop it."""
        if opening is not None:
            await asyncio.shield(asyncio.create_task(self._release_opened(opening)))

    async def _release_opened(self, opening: asyncio.Task[Sandbox]) -> None:
        opening.cancel()  # which does nothing where it is done
        await asyncio.wait([opening])
        if not opening.cancelled() and opening.exception() is None:
            await self.release(opening.result())

    async def run(
        self, spec: SandboxSpec, work: Callable[[Sandbox], Awaitable[T]], tries: int = TRIES
    ) -> tuple[T, float]:
        """Run a function in a sandbox, again in another where one failed; its result, and the seconds waited.

        Raises:
            SandboxError: the sandbox failed at every attempt.
        """
        waited = 0.0

        async def attempt() -> T:
            nonlocal waited
            sandbox, seconds = await self.acquire(spec)
            waited += seconds
            try:
                return await work(sandbox)
            finally:
                await self.release(sandbox)

        return await retry(attempt, SandboxError, [0.0] * (tries - 1), partial(logger.warning, ANOTHER)), waited


class SandboxLease:
    """One episode's sandbox: acquired at its first use, and released at the episode's end."""

    def __init__(self, name: str, spec: SandboxSpec) -> None:
        self._name, self._spec = name, spec
        self._opening: asyncio.Task[Sandbox] | None = None
        self._supplier: Supplier | None = None

    @property
    def used(self) -> bool:
        """True if there is a sandbox, or it is being made ready."""
        return self._opening is not None

    async def get(self, set_up: Callable[[Sandbox], Awaitable[None]] | None = None) -> Sandbox:
        """The sandbox.

        Args:
            set_up: called with it before its first use.

        Raises:
            ConfigError: sandboxes of this kind can't be created here.
            SandboxError: creating it or `set_up` failed.
        """
        if self._opening is None:
            self._supplier = supplier(self._name)
            self._opening = asyncio.create_task(self._open(self._supplier, set_up))
        with tracing.span("sandbox"):
            return await asyncio.shield(self._opening)

    async def _open(self, pool: Supplier, set_up: Callable[[Sandbox], Awaitable[None]] | None) -> Sandbox:
        await pool.check(self._spec)
        sandbox, _ = await pool.acquire(self._spec)
        try:
            if set_up is not None:
                await set_up(sandbox)
        except BaseException:
            await asyncio.shield(pool.release(sandbox))
            raise
        return sandbox

    async def release(self) -> None:
        """Return the sandbox, if there is one; harmless the second time."""
        opening, self._opening = self._opening, None
        if self._supplier is not None:
            await self._supplier.release_opened(opening)


def configure(config: SandboxConfig) -> None:
    """Set where sandboxes are made from now on, and whether they are reused."""
    from agentrl.tools.sandbox.remote import backend as remote

    global _config
    _config = config
    remote.use(config.url, config.key_file, config.certificate)


def supplier(name: str) -> Supplier:
    """The process's one supplier of a backend, or of the one that the settings name in place of all.

    Raises:
        UnknownName: no such backend.
    """
    with _lock:
        key = _config.name or name, _config.reuse != "never", _config.total
        if key not in _suppliers:
            _suppliers[key] = Supplier(*key)
            if len(_suppliers) == 1:
                _at_exit(_close_at_exit)
        return _suppliers[key]


async def close_all() -> None:
    """Remove every sandbox; the next episode begins with new ones."""
    with _lock:
        closing = list(_suppliers.values())
        _suppliers.clear()
    for one in closing:
        await one.pool.close()


@contextlib.asynccontextmanager
async def temporary() -> AsyncIterator[None]:
    """For scripts: all sandboxes that were created within are removed at the end."""
    try:
        yield
    finally:
        await close_all()


def remove_left() -> None:
    """Remove the containers of processes of this machine that have ended, and of this one, which ends."""
    from agentrl.tools.sandbox.docker import container, daemon

    container.remove_left(daemon.daemon())


def _close_at_exit() -> None:
    """Remove all sandboxes at the interpreter's exit, while threads still run."""
    with contextlib.suppress(Exception):
        asyncio.run_coroutine_threadsafe(close_all(), sandbox_loop()).result(EXIT_SECONDS)
