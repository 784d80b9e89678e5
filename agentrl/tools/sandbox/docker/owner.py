"""The process that owns a container, and whether it is alive: labels on the container, a locked file for the owner.

The kernel releases the lock when the process ends, whatever killed it, and a reused process id can't be mistaken for
it. The file is in a state folder of this machine: an owner elsewhere (another machine on the same daemon, another user)
has no file here and never counts as dead. The heartbeat (the file's time) is for listings, and for owners whose lock
can't be tested.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import socket
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from agentrl.tools.threads import in_forked_child

LABEL = "agentrl.sandbox"
OWNER = "agentrl.owner"
CREATED = "agentrl.created"
SPEC = "agentrl.spec"
BEAT_SECONDS = 10.0


def state_dir() -> Path:
    """The folder of owners' files: AGENTRL_STATE, or a folder of this user in the temporary folder."""
    chosen = os.environ.get("AGENTRL_STATE")
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"agentrl-owners-{os.getuid()}"


@dataclass(slots=True)
class Owner:
    """This process, as an owner of containers. Its file stays locked until the process ends."""

    id: str
    path: Path
    descriptor: int
    timer: asyncio.TimerHandle | None = None

    def labels(self, spec_key: str) -> dict[str, str]:
        """The labels of a container of this process."""
        return {LABEL: "1", OWNER: self.id, CREATED: str(int(time.time())), SPEC: spec_key}

    def beat(self, loop: asyncio.AbstractEventLoop) -> None:
        """Update the heartbeat, now and every few seconds."""
        os.utime(self.descriptor)
        self.timer = loop.call_later(BEAT_SECONDS, self.beat, loop)


_lock = threading.Lock()
_owner: Owner | None = None


@in_forked_child
def _forget_owner() -> None:
    global _owner, _lock
    _owner, _lock = None, threading.Lock()


def owner() -> Owner:
    """This process's identity, made at first use; a forked child gets its own."""
    global _owner
    with _lock:
        if _owner is None:
            _owner = _register()
        return _owner


def _register() -> Owner:
    folder = state_dir()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    path = folder / id
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    _remove_dead(folder)
    return Owner(id, path, descriptor)


def is_own(owner_id: str) -> bool:
    """Return whether an owner is this process."""
    return _owner is not None and owner_id == _owner.id


def alive(owner_id: str) -> bool | None:
    """Return whether an owner is alive; None where that is not known on this machine."""
    if is_own(owner_id):
        return True
    if "/" in owner_id or not owner_id:
        return None
    try:
        descriptor = os.open(state_dir() / owner_id, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(descriptor)


def newly_dead(seen: set[str]) -> set[str]:
    """The owners known on this machine that are dead, but for those that were seen to be."""
    folder = state_dir()
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return {name for name in names - seen if alive(name) is False}


def heartbeat_age(owner_id: str) -> float | None:
    """Seconds since an owner's last heartbeat; None where this machine has no file of it."""
    try:
        return max(0.0, time.time() - (state_dir() / owner_id).stat().st_mtime)
    except OSError:
        return None


def _remove_dead(folder: Path, older_than: float = 7 * 86400.0) -> None:
    """Remove the files of owners dead for a week; until then their containers may still be found."""
    for path in folder.iterdir():
        age = heartbeat_age(path.name)
        if age is not None and age > older_than and alive(path.name) is False:
            path.unlink(missing_ok=True)
