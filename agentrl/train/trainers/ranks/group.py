"""The trainer's rank processes: started, called and ended together.

A call goes to every rank and returns rank 0's answer once all have answered. A rank that raises, dies or times out
ends all ranks, because the others wait for it in a collective; the error has its traceback. An `AgentRLError` of a rank
(a `ConfigError`, say) is raised here as it is. A rank that does not run any more is found by its heartbeat, long before
the timeout. When this process is killed, a keeper process ends the ranks.

Ranks that compute on a CPU are forked from a process that has loaded their modules (`prefork`); they are in all else as
new Pythons, which those on GPUs are, where a rank takes longer to wake its device than to load.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl import faults, watchdog
from agentrl.cluster import prefork
from agentrl.cluster.forking import ForkRequest
from agentrl.cluster.keeper import Keeper
from agentrl.common import cores, processes
from agentrl.errors import AgentRLError, InfraError, TrainerError, TrainerTimeout
from agentrl.train.trainers.ranks.heartbeat import SECOND, SILENT, Watch
from agentrl.train.trainers.ranks.worker import RankSettings, heartbeat_file

WORKER = "agentrl.train.trainers.ranks.worker"
GRACE = 5.0
"""Seconds for other ranks to report once one has failed: often theirs is the cause."""


class Ranks:
    """A group of rank processes.

    Args:
        roles: one for each rank, their `store` left empty.
        timeout: seconds that a call may take.
        threads: CPU threads of each rank; None leaves it to the environment.
        environment: variables of the ranks beside this process's.
        loaded: the module that they load first, where they may be forked.
        apart: whether that module changes others for good.
    """

    def __init__(
        self,
        roles: Sequence[RankSettings],
        timeout: float,
        threads: int | None = None,
        environment: Mapping[str, str] | None = None,
        *,
        loaded: str | None = None,
        apart: bool = False,
    ) -> None:
        self.timeout, self.threads = timeout, threads
        self._environment = dict(environment or {})
        self._loaded, self._apart = loaded, apart
        self._folder = tempfile.TemporaryDirectory(prefix="agentrl-ranks-")
        self._processes: list[subprocess.Popen[bytes] | prefork.Forked] = []
        self._pipes: list[Connection] = []
        self._streaming = False
        self._keeper = Keeper(self._folder.name)
        try:
            for _ in roles:
                self._start()
            files = [heartbeat_file(Path(self._folder.name) / "store", rank) for rank in range(len(roles))]
            self._watch = Watch(files, [process.pid for process in self._processes], min(SILENT, timeout / 2))
            for role, pipe in zip(roles, self._pipes, strict=True):
                pipe.send_bytes(pickle.dumps(replace(role, store=str(Path(self._folder.name) / "store"))))
            self._answers("start")
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        own, remote = Pipe()
        root = str(Path(__file__).parents[4])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        environment = {**cores.environment(self.threads), "PYTHONPATH": path, **self._environment}
        self._processes.append(self._fork(environment, remote.fileno()) or _python(environment, remote.fileno()))
        remote.close()
        self._pipes.append(own)
        self._keeper.keep(self._processes[-1].pid)
        processes.register(self._processes[-1].pid, "trainer")

    def _fork(self, environment: dict[str, str], descriptor: int) -> prefork.Forked | None:
        """A forked rank; None where it has to be a new Python."""
        if self._loaded is None:
            return None
        try:
            folder = os.getcwd()
        except OSError:  # it was removed
            return None
        apart = self._loaded if self._apart else ""
        start = ForkRequest(
            "agentrl trainer", [self._loaded], environment, folder, f"{WORKER}:main", guarded=False, apart=apart
        )
        return prefork.start(start, 1, 2, descriptor)

    @property
    def alive(self) -> bool:
        """True while the ranks run."""
        return bool(self._pipes)

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of every rank; returns rank 0's answer.

        Raises:
            AgentRLError: a rank raised it.
            InfraError: a rank raised something else, or died; with its traceback.
            DeadlineExceeded: some rank did not answer in time.
        """
        return self.call_each(method, [args] * len(self._pipes))

    def call_each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> Any:
        """`call` with arguments of its own for each rank; the same tuple is pickled once."""
        self._send(method, arguments)
        return self._answers(method)

    def stream(self, method: str, *args: Any) -> Iterator[tuple[str, Tensor]]:
        """Call a method that yields named tensors on rank 0; raises as `call` does.

        Where the caller stops early, the rest is received and dropped.
        """
        self._send(method, [args] * len(self._pipes))
        self._streaming = True
        deadline = time.monotonic() + self.timeout
        replies: dict[int, Any] = {}
        try:
            while True:
                reply = self._receive(replies, method, deadline)
                if reply[0] != "item":
                    break
                raw = bytearray(self._pipes[0].recv_bytes())
                _, name, dtype, shape = reply
                tensor = torch.frombuffer(raw, dtype=getattr(torch, dtype)) if raw else torch.empty(0)
                yield name, tensor.view(shape)
            self._answers(method, replies | {0: reply})
        except GeneratorExit:
            while (reply := self._receive(replies, method, deadline))[0] == "item":
                self._pipes[0].recv_bytes()
            self._answers(method, replies | {0: reply})
            raise
        finally:
            self._streaming = False

    def _send(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        if not self.alive:
            raise InfraError(f"{method}: the trainer is closed")
        if self._streaming:
            raise InfraError(f"{method}: weights are being read from the ranks, which run one call at a time")
        closed: list[int] = []
        once = {id(args): pickle.dumps((method, args)) for args in {id(args): args for args in arguments}.values()}
        send = partial(_send_all, list(self._pipes), [once[id(args)] for args in arguments], closed)
        sending = threading.Thread(target=send, name=f"sending {method}", daemon=True)
        sending.start()
        deadline = time.monotonic() + self.timeout
        sending.join(SECOND)
        while sending.is_alive():  # a rank that was stopped takes no more than the pipe holds
            self._require_beating(method)
            if time.monotonic() > deadline:
                self._give_up(f"{method}: it could not be sent within {self.timeout:g} s", TrainerTimeout)
            sending.join(SECOND)
        for rank in closed:
            self._give_up(f"{method}: rank {rank} of {len(self._pipes)} {self._how_it_ended(rank)}")
        faults.point("trainer.call")

    def _receive(self, replies: dict[int, Any], method: str, deadline: float) -> Any:
        """The next reply of rank 0; other ranks' replies are put into `replies`; a failure ends all ranks."""
        others = {pipe: i for i, pipe in enumerate(self._pipes) if i and i not in replies}
        while True:
            ready = self._wait([self._pipes[0], *others], method, deadline)
            if self._pipes[0] in ready:
                return self._read(0)
            if not ready:
                self._give_up(f"{method}: no answer from rank 0 in {self.timeout:g} s", TrainerTimeout)
            for pipe in ready:
                other = others.pop(pipe)
                reply = replies[other] = self._read(other)
                if reply[0] == "failed":
                    self._give_up(f"{method}: rank {other} of {len(self._pipes)} failed:\n{reply[2]}", reply[1])

    def _wait(self, pipes: Sequence[Connection], method: str, deadline: float) -> list[Any]:
        """Connections with a reply; none at the deadline. A rank without a heartbeat ends all ranks."""
        while True:
            left = max(0.0, deadline - time.monotonic())
            ready = wait(pipes, timeout=min(left, SECOND))
            if ready or left <= SECOND:
                return list(ready)
            self._require_beating(method)

    def _require_beating(self, method: str) -> None:
        """A rank without a heartbeat ends all ranks; call it about every second while waiting."""
        if still := self._watch.still():
            stopped = "; ".join(f"rank {rank} of {len(self._pipes)} {what}" for rank, what in still.items())
            self._give_up(f"{method}: {stopped}")
        watchdog.progress()  # all ranks run, and the call has a deadline of its own

    def _read(self, rank: int) -> Any:
        try:
            return pickle.loads(self._pipes[rank].recv_bytes())
        except (EOFError, OSError):
            return "failed", None, self._how_it_ended(rank)

    def _answers(self, method: str, have: dict[int, Any] | None = None) -> Any:
        deadline = time.monotonic() + self.timeout
        replies = dict(have or {})
        missing = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in replies}
        while missing:
            ready = self._wait(list(missing), method, deadline)
            if not ready:
                break
            for pipe in ready:
                rank = missing.pop(pipe)
                replies[rank] = self._read(rank)
                if replies[rank][0] == "failed":
                    deadline = min(deadline, time.monotonic() + GRACE)
        failed = {rank: reply for rank, reply in sorted(replies.items()) if reply[0] == "failed"}
        if failed:
            reports = "\n".join(
                f"rank {rank} of {len(self._pipes)} failed:\n{reply[2]}" for rank, reply in failed.items()
            )
            self._give_up(f"{method}: {reports}", next((r[1] for r in failed.values() if r[1] is not None), None))
        if missing:
            ranks = sorted(missing.values())
            self._give_up(f"{method}: no answer from ranks {ranks} in {self.timeout:g} s", TrainerTimeout)
        return replies[0][1]

    def _how_it_ended(self, rank: int) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"the process ended with exit code {self._processes[rank].wait(GRACE)}"
        return "the process closed its connection"

    def _give_up(self, message: str, error: AgentRLError | type[AgentRLError] | None = None) -> None:
        self.close()
        if isinstance(error, AgentRLError):
            raise error
        raise (error or TrainerError)(message)

    def close(self) -> None:
        for process in self._processes:
            processes.signal_group(process.pid)  # with its forked writers of checkpoints
        for process in self._processes:
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
            processes.forget(process.pid)
        self._processes = []
        for pipe in self._pipes:  # now no thread is held up in sending
            pipe.close()
        self._pipes = []
        self._folder.cleanup()
        self._keeper.close()


def _python(environment: Mapping[str, str], descriptor: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", WORKER, str(descriptor)],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=(descriptor,),
        env=environment,
    )


def _send_all(pipes: Sequence[Connection], calls: Sequence[bytes], closed: list[int]) -> None:
    """Send each rank its call, one after another, up to the first whose connection is closed."""
    for rank, (pipe, call) in enumerate(zip(pipes, calls, strict=True)):
        try:
            pipe.send_bytes(call)
        except OSError:
            closed.append(rank)
            return
