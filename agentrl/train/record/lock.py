"""One process at a time trains in a run folder.

The lock is the kernel's (`flock`), so it ends with the process that holds it, however that ends: nothing is left to
clean up after kill -9. `run.lock` itself stays; while it is locked it says who has it. On NFS the kernel makes it a
lock of the server's, which other hosts respect. Where a file system keeps no locks at all, what the file says is all
there is to go by: then it is emptied by whoever ends in order, and after a crash it is removed by the user, unless the
process that it names was on this host.

Reading a run folder (evaluating a checkpoint, looking at sessions or metrics) takes no lock.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import weakref
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError

NAME = "run.lock"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Holder:
    """The last writer of a run's lock, who did not empty it.

    Attributes:
        host: the process's.
        pid: its number there.
        since: when it took the lock, ISO 8601.
        alive: whether it may still run: on another host, nobody knows better.
    """

    host: str
    pid: int
    since: str
    alive: bool


def holder(folder: Path) -> Holder | None:
    """Return who trains in a run folder, without touching the lock; None where nobody does, or all ended in order."""
    found = _read(folder / NAME)
    if not found or not found["pid"].isdecimal():
        return None
    return Holder(found["host"], int(found["pid"]), found["since"], not _has_ended(found))


class RunLock:
    """The lock of a run folder, held from now on.

    Raises:
        ConfigError: somebody else has it; the message names the host, the process and since when.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._descriptor: int | None = descriptor
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._forget()
            raise self._make_error(_read(self._path)) from None
        except OSError as error:
            self._without_locks(error)
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "since": datetime.now().astimezone().isoformat()}
        holder["begun"] = _read_beginning(os.getpid())
        try:
            _overwrite(descriptor, json.dumps(holder).encode())
        except OSError:  # the disk is full
            self._forget()
            raise
        _held.add(self)

    def release(self) -> None:
        """Let others have it; idempotent."""
        if self._descriptor is not None:
            try:
                _overwrite(self._descriptor, b"")
            finally:
                self._forget()

    def _forget(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _without_locks(self, error: OSError) -> None:
        """Decide by what the file says."""
        holder = _read(self._path)
        if holder and not _has_ended(holder):
            self._forget()
            raise self._make_error(holder, f"; if that process has ended, remove {self._path}")
        logger.warning("%s: this file system keeps no locks (%s)", self._path, error.strerror)

    def _make_error(self, holder: dict[str, Any], hint: str = "") -> ConfigError:
        name = "another process"
        if holder:
            name = f"process {holder['pid']} on host {holder['host']}, since {holder['since'][:19].replace('T', ' ')}"
        return ConfigError(
            f"{self._path.parent}: a run is going on there ({name}, holds {NAME}); wait for its end or end it{hint}"
        )


def _overwrite(descriptor: int, data: bytes) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, data, 0)


_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _after_fork() -> None:
    """A forked child shares its parent's lock; it lets go, so that the lock ends with the run and not with a child."""
    for lock in list(_held):
        lock._forget()


os.register_at_fork(after_in_child=_after_fork)


def _read(path: Path) -> dict[str, Any]:
    try:
        holder = json.loads(path.read_text())
        return {name: str(holder[name]) for name in ("host", "pid", "since")} | {"begun": str(holder.get("begun", ""))}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _has_ended(holder: dict[str, Any]) -> bool:
    """Return whether the process that a lock names has ended; False where that is another host's."""
    if holder["host"] != socket.gethostname() or not holder["pid"].isdecimal():
        return False
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return True
    except OSError:  # another user's
        pass
    begun, now = holder["begun"], _read_beginning(int(holder["pid"]))
    return bool(begun and now) and begun != now  # its number is another process's now


def _read_beginning(pid: int) -> str:
    """The boot and the clock tick in which a process began; '' where the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"
    except (OSError, IndexError):
        return ""
