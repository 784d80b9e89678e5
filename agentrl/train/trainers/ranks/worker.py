"""The process of one rank: `python -m agentrl.train.trainers.ranks.worker FD`, or `main` in a process that was forked.

It receives its `RankSettings`, then calls: (method, arguments) in, ("done", answer) or ("failed", error, traceback)
out, over the connection whose file descriptor it inherits. `build` builds its part of a model, and frees an earlier
one. A method that yields sends ("item", …) for each value. When the connection closes, the process ends: a trainer that
died leaves no processes.

Processes of their own rather than forks of this one or `multiprocessing`'s: Megatron's CPU redirection changes torch
for good, and a spawned child would run the user's script again.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.common import custom_code
from agentrl.common.imports import load
from agentrl.errors import AgentRLError
from agentrl.train.trainers.ranks import heartbeat

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class RankSettings:
    """A rank's settings.

    Attributes:
        rank: its number.
        ranks: how many there are.
        store: the rendezvous: a file on one machine, or tcp://host:port.
        builder: the import path of its `Builder`.
        layout: what the builder needs to know of the parallel layout.
        timeout: seconds that a collective may take.
        seed: of its generators.
        code: the code of model folders that may run, as in the process that makes this.
    """

    rank: int
    ranks: int
    store: str
    builder: str
    layout: Any
    timeout: float
    seed: int
    code: frozenset[str] = field(default_factory=custom_code.granted)


class Builder(ABC):
    """Joins the ranks' process group when it is made, and builds this rank's part of a model."""

    def __init__(self, role: RankSettings) -> None:
        self.role = role

    @abstractmethod
    def build(self, *arguments: Any) -> Any:
        """Build the object whose methods are called: with `forget`, which frees what would outlive it."""


def heartbeat_file(store: Path, rank: int) -> Path:
    """A rank's heartbeat file, beside the rendezvous store."""
    return store.with_name(f"beat-{rank}")


def main(descriptor: int) -> None:
    """Serve until the connection closes."""
    pipe = Connection(descriptor)
    with contextlib.suppress(EOFError, OSError):
        rank: Any = None
        builder: Builder | None = None
        while True:
            call = pickle.loads(pipe.recv_bytes())
            try:
                if isinstance(call, RankSettings):
                    warnings.simplefilter("ignore")
                    custom_code.grant(call.code)
                    builder, answer = load(call.builder, "a builder of ranks")(call), None
                    heartbeat.beat(heartbeat_file(Path(call.store), call.rank))  # imports may hold the GIL long
                elif call[0] == "build":
                    assert builder is not None
                    if rank is not None:
                        rank.forget()
                    rank = answer = None
                    rank = builder.build(*call[1])
                else:
                    assert rank is not None
                    method, args = call
                    answer = getattr(rank, method)(*args)
                if isinstance(answer, Iterator):
                    for item in answer:
                        send_item(pipe, *item)
                    answer = None
                reply: tuple[Any, ...] = ("done", answer)
            except BaseException as error:  # torch's CheckpointException is no Exception
                reply = ("failed", error if isinstance(error, AgentRLError) else None, traceback.format_exc())
            pipe.send_bytes(pickle.dumps(reply))
    os.killpg(0, signal.SIGKILL)  # helpers as well; and no destructors, which would wait for ranks that are gone


def join(role: RankSettings, *, gpus: bool) -> None:
    """Join the default process group: over NCCL (on AMD that is RCCL), each rank on a GPU of its own, or over gloo."""
    import torch
    import torch.distributed as dist

    if gpus:
        torch.cuda.set_device(role.rank % torch.cuda.device_count())
    dist.init_process_group(
        "nccl" if gpus else "gloo",
        store=store_of(role),
        rank=role.rank,
        world_size=role.ranks,
        timeout=timedelta(seconds=role.timeout),
    )


def store_of(role: RankSettings) -> Any:
    """The rendezvous: the file, or the store of the process that started the ranks."""
    from torch import distributed as dist

    if not role.store.startswith("tcp://"):
        return dist.FileStore(role.store, role.ranks)  # type: ignore[attr-defined]
    host, _, port = role.store.removeprefix("tcp://").rpartition(":")
    limit = timedelta(seconds=role.timeout)
    return dist.TCPStore(host, int(port), is_master=False, timeout=limit)  # type: ignore[attr-defined]


def send_item(pipe: Connection, name: str, tensor: torch.Tensor) -> None:
    """Send a tensor: name, dtype and shape, then its bytes."""
    import torch

    plain = tensor.detach().cpu().contiguous()
    pipe.send_bytes(pickle.dumps(("item", name, str(plain.dtype).removeprefix("torch."), tuple(plain.shape))))
    raw: Any = plain.flatten().view(torch.uint8).numpy()
    pipe.send_bytes(raw)


if __name__ == "__main__":
    from agentrl.train.trainers.ranks import worker  # under its own name, by which a `RankSettings` arrives

    worker.main(int(sys.argv[1]))
