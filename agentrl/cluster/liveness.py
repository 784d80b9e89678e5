"""Tells whether a role's process still runs: a thread of its own says so, and the process that started it listens.

A process that is stopped answers nothing, and all its connections stay open. Silence is not work: a call may take hours
while the thread goes on. Nor is it a busy machine, or native code that holds Python's global lock: where no beat comes,
the kernel is asked whether a thread of the process has run since, or waits for a processor.

A process that is silent for too long is ended by who started it, on its own node. So all its connections end, whoever
holds them, and what follows is what follows the death of any worker.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import orjson

from agentrl.watchdog import Silence

SUFFIX = ".silent"
"""Ends the name of the file, beside a worker's log, that is there while it is silent."""
SHOWN = 1 / 3
"""The share of the seconds that end a process after which its silence is shown."""
_PERIOD = struct.Struct("d")
_BEAT = struct.Struct("i")
_RUNS_ANYWAY = "Rt"
"""The kernel's letters for a thread that runs or waits for a processor, and for one that a debugger holds."""


def beat(owner: socket.socket) -> None:
    """Take the pipe that the owner sends first, and write this process's number to it from now on.

    Raises:
        EOFError: the owner has gone.
    """
    data, descriptors, _, _ = socket.recv_fds(owner, _PERIOD.size, 1)
    if not descriptors:
        raise EOFError("the process that started this worker has ended")
    pipe = descriptors[0]
    os.set_inheritable(pipe, False)

    def go_on() -> None:
        own = _BEAT.pack(os.getpid())
        with contextlib.suppress(OSError):  # nobody listens any more
            while True:
                os.write(pipe, own)
                time.sleep(_PERIOD.unpack(data)[0])

    threading.Thread(target=go_on, name="heartbeat", daemon=True).start()


class Liveness:
    """Listens to a process from a thread that ends with it.

    Args:
        owner: this end of the pair of sockets with the process; nothing was sent yet.
        name: what messages call it.
        seconds: of silence after which it is given up.
        file: exists while it is silent; None: none does.
        give_up: ends the process; called at most once, from the thread.

    Attributes:
        silent: why it was given up; '' where it was not.
    """

    def __init__(
        self, owner: socket.socket, name: str, seconds: float, file: Path | None, give_up: Callable[[], object]
    ) -> None:
        self._name, self._seconds, self._file, self._give_up = name, seconds, file, give_up
        self.silent, self._process, self._ran = "", 0, 0
        self._over = threading.Event()
        silence = Silence(seconds, time.monotonic())
        self._pipe, theirs = os.pipe()
        try:
            socket.send_fds(owner, [_PERIOD.pack(silence.tick)], [theirs])
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(theirs)
        threading.Thread(target=self._listen, args=(silence,), name=f"liveness of {name}", daemon=True).start()

    def close(self) -> None:
        """Stop listening. A second call does nothing."""
        self._over.set()

    def _listen(self, silence: Silence) -> None:
        signs = 0
        try:
            while not self._over.is_set():
                if select.select([self._pipe], [], [], silence.tick)[0]:
                    beats = os.read(self._pipe, 4096)
                    if not beats:
                        return
                    self._process, signs = _BEAT.unpack(beats[-_BEAT.size :])[0], signs + 1
                elif self._runs():
                    signs += 1
                over = silence.lasted(time.monotonic(), signs)
                self._show(silence.seconds)
                if over and not self._over.is_set():
                    self.silent = (
                        f"{self._name} is given up: its process {self._process} has shown no life for "
                        f"{self._seconds:g} s (cluster.silence_timeout)"
                    )
                    self._give_up()
                    return
        finally:
            self._show(0.0)
            os.close(self._pipe)

    def _runs(self) -> bool:
        """True if the process has run since the last call, wants to, or has not begun."""
        if not self._process:
            return True
        letters, ran = _state(self._process)
        before, self._ran = self._ran, ran
        return ran != before or any(letter in _RUNS_ANYWAY for letter in letters)

    def _show(self, seconds: float) -> None:
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            if seconds < SHOWN * self._seconds:
                self._file.unlink(missing_ok=True)
            elif not self._file.exists():
                said = {"name": self._name, "process": self._process, "since": time.time() - seconds}
                self._file.write_bytes(orjson.dumps(said))


def silences(logs: Path) -> list[str]:
    """The workers of a run that are silent, a sentence each, by the files beside their logs."""
    found = []
    for file in sorted(logs.glob(f"*{SUFFIX}")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            said = orjson.loads(file.read_bytes())
            quiet = time.time() - float(said["since"])
            found.append(f"{said['name']} ({file.stem}, process {said['process']}) has been silent for {quiet:.0f} s")
    return found


def _state(process: int) -> tuple[str, int]:
    """The kernel's letter for each thread of a process, and how long they have run, in its clock's ticks."""
    letters, ran = "", 0
    with contextlib.suppress(OSError, IndexError, ValueError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                fields = Path(f"/proc/{process}/task/{thread}/stat").read_text().rpartition(")")[2].split()
                letters, ran = letters + fields[0], ran + int(fields[11]) + int(fields[12])
    return letters, ran
