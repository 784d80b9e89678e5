"""The process of a role: `python -m agentrl.cluster.worker DESCRIPTOR`.

The descriptor is its end of a pair of sockets with the process that started it. First come a pipe, to which a thread
says from then on that the process runs (`liveness`), and a `WorkerStart`. Then goes the worker's address, or the error
of a role that could not be built, and come calls (`calls`). The process ends with that connection, whoever else is
connected by the address.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import socket
import sys
import traceback
from dataclasses import dataclass
from typing import Any

from agentrl import cluster
from agentrl.cluster import liveness
from agentrl.cluster.base import PickledArguments, Role
from agentrl.cluster.wire.calls import Calls, Listener
from agentrl.cluster.wire.connection import make_error
from agentrl.cluster.wire.frames import encode, receive
from agentrl.cluster.wire.interfaces import use_for_gloo
from agentrl.common import garbage
from agentrl.common.imports import load

CLOSE_SECONDS = 5.0
"""Seconds that a role's own `close` may take."""


@dataclass(frozen=True)
class WorkerStart:
    """Arguments of a worker's process: the role, its node's name, and where, with which key and how to listen."""

    role: Role
    node: str
    host: str
    key: bytes
    encrypted: bool


def main(descriptor: int) -> int:
    """Build the role and serve it; returns the exit status."""
    owner = socket.socket(fileno=descriptor)
    liveness.beat(owner)
    start: WorkerStart = receive(owner)
    cluster.current().host, cluster.current().encrypted = start.host, start.encrypted
    use_for_gloo(start.host)
    where = f"{start.role} on {start.node}"
    if not start.role.shown:
        print(f"{where}, process {os.getpid()}", flush=True)  # the log's name says which start it was, and not the rank
    try:
        assert isinstance(start.role.arguments, PickledArguments)
        arguments = start.role.arguments.loaded()
        target = load(start.role.make, f"the role {start.role.make!r}")(*arguments)
    except BaseException as error:
        owner.sendall(encode(make_error(error, where, traceback.format_exc())))
        return 1
    with garbage.collect_less_often():
        asyncio.run(_serve(target, start, where, owner))
    return 0


async def _serve(target: Any, start: WorkerStart, where: str, owner: socket.socket) -> None:
    listener = Listener(target, str(start.role), where, start.host, start.key, encrypted=start.encrypted)
    async with listener as address:
        reader, writer = await asyncio.open_connection(sock=owner)
        writer.write(encode(address))
        await Calls(target, where, writer).serve(reader)
    close = getattr(target, "close", None)
    if close is not None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_SECONDS):
                result = close()
                if inspect.isawaitable(result):
                    await result
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # without waiting for threads: whoever needs their results is gone


if __name__ == "__main__":
    from agentrl.cluster import worker  # under its own name, by which a `WorkerStart` arrives

    sys.exit(worker.main(int(sys.argv[1])))
