"""Running the gateway: in this process's event loop, on a port of its own, until cancelled.

It binds to the loopback interface by default, and a gateway that others can reach always has a key
for opening sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from fastapi import FastAPI

from agentrl.errors import EngineError
from agentrl.sessions.gateway.gateway import Gateway
from agentrl.sessions.gateway.http.app import create_app
from agentrl.sessions.gateway.http.listener import address, listening, serve_app
from agentrl.sessions.gateway.http.own_host import Hosts, OwnHost
from agentrl.sessions.gateway.http.tls import Tls
from agentrl.sessions.renderers.base import Renderer
from agentrl.sessions.store.store import Store
from agentrl.types import Engine

CHECK_EVERY = 2.0
"""Seconds between two checks whether the engine has failed permanently."""
ALL_INTERFACES = ("0.0.0.0", "::")
YOUNG, MIDDLE, NEVER = 5_000, 4, 1 << 30
"""The collector's thresholds (see `gc.set_threshold`): a collection takes 1 to 2 ms."""
IDLE_SECONDS, BUSY_SECONDS = 30.0, 600.0
"""Seconds between two full collections, with and without some seconds free of requests before."""


@contextlib.asynccontextmanager
async def running(
    app: FastAPI,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    bound: socket.socket | None = None,
    tls: Tls | None = None,
    name: str | None = None,
    hosts: Hosts | None = None,
) -> AsyncIterator[str]:
    """Serve an application while the block runs; yields its address.

    Args:
        app: what `create_app` made.
        host: the address to bind to.
        port: 0 takes a free one.
        bound: a socket that listens there already; the caller closes it.
        tls: None serves plain HTTP.
        name: the host name or address that clients use; None is `host`.
        hosts: the names that requests' Host headers may have; None allows all.

    Raises:
        InfraError: the address is taken, or the server did not start.
    """
    gateway = gateway_of(app)
    listener = bound or listening(host, port)
    try:
        guarded = app if hosts is None else OwnHost(app, hosts)
        async with serve_app(guarded, listener, gateway.parts.limits, tls):
            url = address(listener, name or host, tls)
            if (
                name is not None or host not in ALL_INTERFACES
            ):  # else clients on other machines are given the address that they used
                app.state.url = app.state.url or url
            try:
                yield url
            finally:
                await gateway.aclose()
    finally:
        if bound is None:
            listener.close()


async def serve(
    engine: Engine,
    renderer: Renderer,
    store: Store,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    admin_key: str | None = None,
    announce: Any = print,
    own_process: bool = False,
    bound: socket.socket | None = None,
    tls: Tls | None = None,
    hosts: Iterable[str] = (),
    **options: Any,
) -> None:
    """Serve until cancelled, or until no engine is left.

    Args:
        engine: generates the turns.
        renderer: the model's conversation format.
        store: where sessions are kept.
        host: the address to bind to; any other than loopback needs a key, and gets one where none is given.
        port: the port; 0 takes a free one.
        admin_key: what opening a session needs.
        announce: is called with the address, and the key if one was made up.
        own_process: whether this process does nothing else, so that its garbage collector may be set for serving.
        bound: a socket that listens at `host` and `port` already.
        tls: None serves plain HTTP.
        hosts: names besides this machine's that a request's Host header may have.
        **options: see `create_app`.

    Raises:
        InfraError: the address is taken.
        EngineError: the engine has failed permanently.
    """
    admin_key = admin_key or made_up_key(host, announce)
    app = create_app(engine, renderer, store, admin_key=admin_key, **options)
    gateway = gateway_of(app)
    async with (
        running(app, host=host, port=port, bound=bound, tls=tls, hosts=Hosts(hosts)) as url,
        tuned_collector(lambda: gateway.begun) if own_process else contextlib.nullcontext(),
    ):
        announce(f"the gateway listens on {url} (POST {url}/sessions opens a session)")
        while not (health := await engine.health()).gone:  # noqa: ASYNC110 (engines have no event for it)
            await asyncio.sleep(CHECK_EVERY)
        raise EngineError(f"no engine is left to serve with: {health.detail}")


def made_up_key(host: str, announce: Callable[[str], object]) -> str | None:
    """A key for opening sessions at an address that others can reach, announced; None for the loopback interface."""
    if host in ("127.0.0.1", "::1", "localhost"):
        return None
    key = f"sk-{secrets.token_urlsafe(24)}"
    announce(f"opening a session needs this key: {key}")
    return key


def gateway_of(app: FastAPI) -> Gateway:
    """The sessions behind an application."""
    gateway: Gateway = app.state.gateway
    return gateway


@contextlib.asynccontextmanager
async def tuned_collector(
    begun: Callable[[], int], check_every: float = 5.0, idle: float = IDLE_SECONDS
) -> AsyncIterator[None]:
    """Collect garbage as suits a process that only serves while the block runs, and as before afterwards.

    Python's collector traverses all open sessions repeatedly, and every request waits meanwhile: a tenth of a second
    and more with long histories. Sealed sessions are freed without it, since they are in no reference cycle. So what
    exists at the start is frozen, young objects are collected in small steps, and all others rarely, since that finds
    little and takes 0.2 s with 8 sessions of 128k tokens: after seconds without a request, or after ten minutes.

    Args:
        begun: how many requests have begun so far.
        check_every: seconds between two looks at that number.
        idle: seconds between two full collections while it stays as it is.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, NEVER)
    collecting = asyncio.ensure_future(_collect(begun, check_every, idle))
    try:
        yield
    finally:
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)
        gc.set_threshold(*before)
        gc.unfreeze()


async def _collect(begun: Callable[[], int], check_every: float, idle: float) -> None:
    last = time.monotonic()
    while True:
        before = begun()
        await asyncio.sleep(check_every)
        if time.monotonic() - last > (idle if begun() == before else BUSY_SECONDS):
            gc.collect()
            last = time.monotonic()
