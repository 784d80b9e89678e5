"""Any ASGI application on a port, in the event loop of its caller: what the gateway, its workers and the viewer share.

It imports neither a web framework nor an SDK.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn

from agentrl.common.foreign_errors import port_advice
from agentrl.errors import InfraError
from agentrl.sessions.gateway.http.connection import connection_type
from agentrl.sessions.gateway.http.tls import Tls
from agentrl.sessions.gateway.limits import Limits

START_SECONDS = 30.0
STOP_SECONDS = 10


@contextlib.asynccontextmanager
async def served(app: Any, listener: socket.socket, limits: Limits, tls: Tls | None = None) -> AsyncIterator[None]:
    """Serve any ASGI application on a listening socket while the block runs.

    Raises:
        InfraError: the server did not start.
    """
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=120,
        timeout_graceful_shutdown=STOP_SECONDS,
        server_header=False,
        proxy_headers=False,
        http=connection_type(limits),
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
    )
    server = _Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        async with asyncio.timeout(START_SECONDS):
            while not server.started and not serving.done():  # noqa: ASYNC110 (uvicorn has no event for it)
                await asyncio.sleep(0.01)
        if serving.done():
            raise InfraError(f"the server did not start on {listener.getsockname()}") from serving.exception()
        yield
    finally:
        server.should_exit = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS + 5):
                await serving


def address(listener: socket.socket, host: str, tls: Tls | None = None) -> str:
    """The URL of a listening socket."""
    name = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{name}:{listener.getsockname()[1]}"


def listening(host: str, port: int) -> socket.socket:
    """A listening socket that says that it is TCP: asyncio sends without delay only on those (40 ms a reply)."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(2048)
    except OSError as error:
        bound.close()
        raise InfraError(f"can't listen on {host}:{port}: {error}{port_advice(error)}") from error
    return bound


class _Server(uvicorn.Server):
    """A server that leaves the process's signals alone: it runs in an event loop of its caller's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield
