"""`agentrl serve`: in this process, or with `workers=N` in several worker processes that this one starts and restarts.

With several, this process binds every port before it starts a worker and keeps the sockets open. So a worker that ends
is restarted on the same port, and requests wait for it meanwhile; its sessions are in the store, from which the new
process continues them. Workers end with this process, however it ends: their standard input is a pipe from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import orjson
from rich.console import Console

from agentrl.common import cores
from agentrl.common.concurrency import cancel_on, current_task
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

    cancel_on(signal.SIGTERM, signal.SIGINT)
    with contextlib.ExitStack() as sockets:
        entrance = sockets.enter_context(listening(config.host, config.port))
        bound = [sockets.enter_context(listening(config.host, port)) for port in worker_ports(config)]
        ports = [one.getsockname()[1] for one in bound]
        key = config.admin_key or made_up_key(config.host, announce)
        settings = {"tree": tree, "ports": ports, "admin_key": key}
        workers = [ServingProcess(number, one, settings, announce) for number, one in enumerate(bound)]
        tls = tls_of(config)
        front = Front(config.host, ports, lambda number: workers[number].running, Limits().body_bytes, tls)
        kept = [asyncio.ensure_future(worker.keep()) for worker in workers]
        try:
            async with serve_app(OwnHost(front, Hosts(config.hosts)), entrance, Limits(), tls):
                url = address(entrance, config.host, tls)
                announce(f"the gateway listens on {url} (POST {url}/sessions opens a session); workers: {ports}")
                done, _ = await asyncio.wait(kept, return_when=asyncio.FIRST_COMPLETED)
                for ended in done:
                    ended.result()
        finally:
            for keeping in kept:
                keeping.cancel()
            await asyncio.gather(*kept, return_exceptions=True)
            await front.aclose()


class ServingProcess:
    """One process that serves its share of the sessions."""

    def __init__(
        self, number: int, bound: socket.socket, settings: dict[str, Any], announce: Callable[[str], object]
    ) -> None:
        self._number, self._bound, self._announce = number, bound, announce
        self._settings = orjson.dumps({**settings, "number": number, "socket": bound.fileno()}, default=str)
        self._process: asyncio.subprocess.Process | None = None
        self._ends: list[float] = []

    @property
    def running(self) -> bool:
        """True while the worker's process is running."""
        return self._process is not None and self._process.returncode is None

    async def keep(self) -> None:
        """Run the worker, and restart it when it ends, until cancelled.

        Raises:
            InfraError: it ends repeatedly.
        """
        while True:
            code = await self._run()
            now = time.monotonic()
            self._ends = [at for at in self._ends if now - at < ENDS_WITHIN] + [now]
            if len(self._ends) >= MAX_ENDS:
                raise InfraError(
                    f"worker {self._number} has ended {MAX_ENDS} times within {ENDS_WITHIN:g} s, the last time with "
                    f"code {code}; see what it printed"
                )
            self._announce(
                f"worker {self._number} has ended with code {code} and is restarted; "
                "its sessions continue from the store"
            )

    async def _run(self) -> int:
        """Run the worker to its end; cancelling this ends the worker."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", __name__),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=(self._bound.fileno(),),
            start_new_session=True,  # an interrupt at the terminal is for the process that watches it
        )
        self._process = process
        assert process.stdin is not None
        try:
            with contextlib.suppress(ConnectionError):
                process.stdin.write(self._settings + b"\n")
                await process.stdin.drain()
            return await process.wait()
        finally:
            if process.returncode is None:
                process.stdin.close()
                try:
                    async with asyncio.timeout(STOP_SECONDS):
                        await process.wait()
                except TimeoutError:
                    process.kill()
                    await process.wait()


async def _serve_share(given: dict[str, Any]) -> None:
    """A worker: serve until the process that started this one ends or closes the pipe."""
    from agentrl.sessions.gateway.workers import SessionShard

    config = validate(given["tree"], ServeConfig)
    loop, end = asyncio.get_running_loop(), current_task().cancel

    def watch() -> None:
        if not os.read(0, 1024):
            loop.remove_reader(0)
            end()

    loop.add_reader(0, watch)
    await serve_config(
        config,
        model_folder(config.model),
        lambda text: None,
        admin_key=given["admin_key"],
        bound=socket.socket(fileno=given["socket"]),
        shard=SessionShard(given["number"], given["ports"]),
    )


def main() -> None:
    """Run as a worker; the settings are the first line of the standard input."""
    given = orjson.loads(sys.stdin.buffer.readline())
    try:
        with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
            asyncio.run(_serve_share(given))
    except Exception as error:
        raise SystemExit(f"worker {given['number']}: {type(error).__name__}: {error}") from None


if __name__ == "__main__":
    main()
