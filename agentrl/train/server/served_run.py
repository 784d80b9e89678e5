"""A training run on the disk: its requests in order, their answers, and its adapter after the last update.

    run.json                      what it is
    state-N.pt                    matrices, gradients and moments after request N
    requests/N.request            accepted, and not yet in the state
    requests/N.answer             what its client gets, however often it asks
    weights/NAME, sampler_weights/NAME, snapshots/N     saved by its client; adapters in PEFT's format

A request is acknowledged once its file is on the disk, and answered once its answer is. So a server that was killed
computes again what its state has not, and no client notices more than a pause.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.common.scratch import remove
from agentrl.errors import InvalidInput
from agentrl.train.record.files import write_atomically

if TYPE_CHECKING:
    from agentrl.train.server.passes import RunAdapter

KEPT_ANSWERS = 512
"""Answers that are kept behind the state, for clients that ask late."""
FARTHEST = 4096
"""The most that a client's number may be ahead of the next request."""


@dataclass(frozen=True, slots=True)
class Work:
    """A request as it came: the name of its address, and its body."""

    kind: str
    body: bytes

    def packed(self) -> bytes:
        """Return both as one text."""
        return self.kind.encode() + b"\n" + self.body

    @classmethod
    def unpacked(cls, data: bytes) -> Work:
        """Read what `packed` returned."""
        kind, _, body = data.partition(b"\n")
        return cls(kind.decode(), body)


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply to a client: bytes of a media type; `failed` where the request could not be computed."""

    media: str
    body: bytes
    failed: bool = False

    @classmethod
    def of(cls, value: Any) -> Answer:
        """Return an answer in JSON."""
        return cls("application/json", json.dumps(value).encode())

    @classmethod
    def failure(cls, message: str, *, user: bool) -> Answer:
        """Return the answer to a request that failed, by its client's fault or by the server's."""
        body = json.dumps({"error": message, "category": "user" if user else "server"}).encode()
        return cls("application/json", body, failed=True)

    def packed(self) -> bytes:
        """Return it as one text."""
        return f"{self.media} {int(self.failed)}\n".encode() + self.body

    @classmethod
    def unpacked(cls, data: bytes) -> Answer:
        """Read what `packed` returned."""
        head, _, body = data.partition(b"\n")
        media, _, failed = head.decode().rpartition(" ")
        return cls(media, body, failed == "1")


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run's base, adapter and client.

    Attributes:
        model_id: its name on the wire.
        session_id: of the client that made it.
        base_model: the base, by the name that its client uses.
        rank: of its adapter; 0 until a checkpoint that it begins with was read.
        attention: the adapter is on attention's layers.
        mlp: it is on the other linear layers.
        seed: of its first matrices.
        metadata: the client's.
        created: seconds since 1970.
    """

    model_id: str
    session_id: str
    base_model: str
    rank: int
    attention: bool = True
    mlp: bool = True
    seed: int = 0
    metadata: dict[str, Any] | None = None
    created: float = field(default_factory=time.time)


class ServedRun:
    """A run: its requests, and its adapter while it is in memory.

    Attributes:
        computed: the number of the last request that was computed.
        waiting: requests by their numbers, accepted and not computed.
        loaded: its adapter; None while that is on the disk alone.
        broken: why nothing more is computed; None: it goes on.
        answered: is set when a request has been answered, and replaced.
    """

    def __init__(self, path: Path, info: RunInfo) -> None:
        self.path, self.info = path, info
        self.computed = -1
        self.waiting: dict[int, Work] = {}
        self.loaded: RunAdapter | None = None
        self.broken: str | None = None
        self.answered = asyncio.Event()
        self._lock = threading.Lock()
        self.last_request = info.created

    @classmethod
    def create(cls, path: Path, info: RunInfo) -> ServedRun:
        """Make a new run's folder."""
        (path / "requests").mkdir(parents=True)
        run = cls(path, info)
        run.write_info(info)
        return run

    @classmethod
    def open(cls, path: Path) -> ServedRun:
        """Read a run of an earlier server; what its state has not is to be computed again."""
        run = cls(path, RunInfo(**json.loads((path / "run.json").read_text())))
        run.rewind()
        return run

    def write_info(self, info: RunInfo) -> None:
        """Set what it is."""
        self.info = info
        write_atomically(self.path / "run.json", json.dumps(asdict(info)).encode())

    def rewind(self) -> None:
        """Go back to the state on the disk: all later requests are to be computed again."""
        with self._lock:
            self.loaded = None
            self.computed = max(self._states(), default=-1)
            files = {int(file.stem): file for file in (self.path / "requests").glob("[0-9]*.request")}
            self.waiting = {n: Work.unpacked(f.read_bytes()) for n, f in sorted(files.items()) if n > self.computed}

    def _states(self) -> list[int]:
        return [int(file.stem.removeprefix("state-")) for file in self.path.glob("state-*.pt")]

    def _file(self, number: int, kind: str) -> Path:
        return self.path / "requests" / f"{number:08d}.{kind}"

    def accept(self, number: int, work: Work) -> None:
        """Keep a request; one whose number was accepted before is its repetition, and changes nothing.

        Raises:
            InvalidInput: the number is far from what is due.
        """
        with self._lock:
            if number in self.waiting or number <= self.computed:
                return
            if number < 0 or number > self.computed + FARTHEST:
                raise InvalidInput(f"seq_id={number} of {self.info.model_id}: {self.computed + 1} is due")
            write_atomically(self._file(number, "request"), work.packed())
            self.waiting[number] = work
            self.last_request = time.time()

    @property
    def due(self) -> bool:
        """Return whether the next request is there, and can be computed."""
        return self.broken is None and self.computed + 1 in self.waiting

    def answer(self, number: int) -> Answer | None:
        """Return a request's answer, if there is one."""
        try:
            return Answer.unpacked(self._file(number, "answer").read_bytes())
        except FileNotFoundError:
            return None

    def ready(self, number: int) -> Answer | None:
        """Return a request's answer once what it stands for is on the disk."""
        if number <= self.computed:
            return self.answer(number)
        return None if self.broken is None else Answer.failure(f"the run can't go on: {self.broken}", user=False)

    def knows(self, number: int) -> bool:
        """Return whether a request of this number was accepted and its answer is kept, or will come."""
        return number in self.waiting or self._file(number, "answer").exists()

    def keep(self, number: int, answer: Answer) -> None:
        """Write a request's answer, unless it has been given before."""
        file = self._file(number, "answer")
        if not file.exists():
            write_atomically(file, answer.packed())

    def save(self, number: int) -> None:
        """Write the adapter as it is after a request, and forget what it makes needless."""
        import torch

        beside = self.path / ".state.partial"
        torch.save(self.adapter.state(), beside)
        write_atomically(self.path / f"state-{number:08d}.pt", beside.read_bytes())
        beside.unlink()
        for old in self._states():
            if old < number:
                (self.path / f"state-{old:08d}.pt").unlink()
        oldest = {".request": number + 1, ".answer": number - KEPT_ANSWERS}
        for file in (self.path / "requests").glob("[0-9]*"):
            if int(file.stem) < oldest.get(file.suffix, 0):
                file.unlink()

    @property
    def adapter(self) -> RunAdapter:
        """The adapter, which is in memory."""
        if self.loaded is None:
            raise InvalidInput(f"training run {self.info.model_id} has no adapter in memory")
        return self.loaded

    def read_state(self) -> dict[str, Any]:
        """Return the adapter's state on the disk, mapped and not read yet."""
        import torch

        found = max(self._states(), default=None)
        if found is None:
            raise InvalidInput(f"training run {self.info.model_id} was not created: its first request failed")
        state: dict[str, Any] = torch.load(self.path / f"state-{found:08d}.pt", weights_only=True, mmap=True)
        return state

    def advance(self, number: int) -> None:
        """Count a request as computed."""
        with self._lock:
            self.computed = number
            self.waiting.pop(number, None)

    def wake(self) -> None:
        """Have those who wait for answers look again; in the event loop."""
        self.answered.set()
        self.answered = asyncio.Event()

    def remove_old_snapshots(self, kept: int) -> None:
        """Remove all but the newest unnamed weights for sampling."""
        found = sorted((self.path / "snapshots").glob("[0-9]*"), key=lambda folder: int(folder.name))
        for folder in found[:-kept]:
            remove(folder)
