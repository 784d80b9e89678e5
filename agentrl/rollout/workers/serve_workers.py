"""`agentrl serve`: in this process, or with `workers=N` in several worker processes that this one starts and restarts.

With several, this process binds every port before it starts a worker and keeps the sockets open. So a worker that ends
is restarted on the same port, and requests wait for it meanwhile; its sessions are in the store, from which the new
process continues them. Workers end with this process, however it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
from rich.console import Console

from agentrl.cluster.restarted_server import RestartedServer
from agentrl.cluster.server import OURS, ServerProcess
from agentrl.common import cores
from agentrl.common.concurrency import cancel_on
from agentrl.errors import InfraError
from agentrl.models.registry import model_folder
from agentrl.overrides import validate
from agentrl.rollout.workers.serve_process import ServeConfig, check_config, serve_config, tls_of, worker_ports

STOP_SECONDS = 20.0
"""Seconds within which a worker must stop; then it is killed."""
MAX_ENDS, ENDS_WITHIN = 3, 60.0
"""A worker that ends so often within so many seconds is not restarted."""


@cores.one_each()
def serve_command(tree: dict[str, Any], out: Console) -> None:
    """Serve until interrupted or terminated; then engines and store are closed in order.

    Raises:
        ConfigError: a setting is unknown, missing, or of the wrong type.
    """
    config = validate(tree, ServeConfig)
    path = check_config(config)

    def announce(text: str) -> None:
        out.print(text, highlight=False, soft_wrap=True)

    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        if config.workers == 1:
            asyncio.run(serve_config(config, path, announce))
        else:
            asyncio.run(serve_workers(tree, config, announce))


async def serve_workers(tree: dict[str, Any], config: ServeConfig, announce: Callable[[str], object]) -> None:
    """Serve until cancelled, or until a worker ends repeatedly.

    Args:
        tree: the settings as they were given, which each worker reads for itself.
        config: the same, validated.
        announce: is called with the address, and with each worker's end.

    Raises:
        InfraError: a port is taken, or a worker does not stay up.
    """
    from agentrl.sessions.gateway.http.listener import address, listening, serve_app
    from agentrl.sessions.gateway.http.own_host import Hosts, OwnHost
    from agentrl.sessions.gateway.http.server import made_up_key
    from agentrl.sessions.gateway.limits import Limits
    from agentrl.sessions.gateway.workers import Front

    def report(end: str) -> None:
        announce(f"{end}; it is restarted, and its sessions continue from the store")

    cancel_on(signal.SIGTERM, signal.SIGINT)
    with contextlib.ExitStack() as sockets:
        entrance = sockets.enter_context(listening(config.host, config.port))
        bound = [sockets.enter_context(listening(config.host, port)) for port in worker_ports(config)]
        ports = [one.getsockname()[1] for one in bound]
        key = config.admin_key or made_up_key(config.host, announce)
        settings = {"tree": tree, "ports": ports, "admin_key": key}
        tls, workers = tls_of(config), list[RestartedServer]()
        front = Front(config.host, ports, lambda number: workers[number].running, Limits().body_bytes, tls)
        try:
            for number, one in enumerate(bound):
                start = partial(_start, number, one, settings)
                workers.append(RestartedServer(f"worker {number}", start, report, most=MAX_ENDS, within=ENDS_WITHIN))
            async with serve_app(OwnHost(front, Hosts(config.hosts)), entrance, Limits(), tls):
                url = address(entrance, config.host, tls)
                announce(f"the gateway listens on {url} (POST {url}/sessions opens a session); workers: {ports}")
                given_up = [asyncio.wrap_future(worker.given_up) for worker in workers]
                done, _ = await asyncio.wait(given_up, return_when=asyncio.FIRST_COMPLETED)
                raise InfraError("; ".join(end.result() for end in done))
        finally:
            for worker in workers:
                worker.stop()
            await asyncio.gather(*(asyncio.to_thread(worker.close, STOP_SECONDS) for worker in workers))
            await front.aclose()


def _start(number: int, bound: socket.socket, settings: dict[str, Any]) -> ServerProcess:
    """Start a worker, which serves its share of the sessions at a socket that listens already."""
    with tempfile.TemporaryFile() as file:  # which has no name: there are keys in it
        file.write(orjson.dumps({**settings, "number": number, "socket": bound.fileno()}, default=str))
        file.seek(0)
        return ServerProcess(
            f"worker {number}",
            [sys.executable, "-m", __name__, str(file.fileno())],
            log=OURS,
            threads=cores.choose_threads(None, 1),
            descriptors=(bound.fileno(), file.fileno()),
            kind="gateway",
        )


async def _serve_share(given: dict[str, Any]) -> None:
    """A worker: serve until the process that started this one ends it, or has ended."""
    from agentrl.sessions.gateway.workers import SessionShard

    config = validate(given["tree"], ServeConfig)
    await serve_config(
        config,
        model_folder(config.model),
        lambda text: None,
        admin_key=given["admin_key"],
        bound=socket.socket(fileno=given["socket"]),
        shard=SessionShard(given["number"], given["ports"]),
    )


def main() -> None:
    """Run as a worker; the argument is the descriptor of a file with its settings."""
    with open(int(sys.argv[1]), "rb") as file:
        given = orjson.loads(file.read())
    try:
        with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
            asyncio.run(_serve_share(given))
    except Exception as error:
        raise SystemExit(f"worker {given['number']}: {type(error).__name__}: {error}") from None


if __name__ == "__main__":
    main()
