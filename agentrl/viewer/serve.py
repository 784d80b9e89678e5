"""`agentrl view`: the viewer on a port, until it is interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
from collections.abc import Callable
from pathlib import Path

from pydantic import Field

from agentrl.config.sections import Section
from agentrl.sessions.gateway.http.listener import address, listening, serve_app
from agentrl.sessions.gateway.limits import Limits
from agentrl.viewer.app import create_app
from agentrl.viewer.replay_process import Replays

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ViewConfig(Section):
    """Settings of `agentrl view`."""

    host: str = "127.0.0.1"
    """The address to bind to; any other than loopback needs a token."""
    port: int = Field(default=8080, ge=0, le=65535)
    """The port; 0 takes a free one."""
    token: str | None = Field(default=None, min_length=16)
    """The token that a browser must bring, on the loopback interface too; elsewhere one is made up where none is
    given."""
    hosts: tuple[str, ...] = ()
    """Names under which browsers may ask for it, besides this machine's own and addresses."""
    read_only: bool = False
    """Nothing can be changed from the page: it starts no replay, and keeps no note."""


async def view(root: Path, config: ViewConfig, announce: Callable[[str], object]) -> None:
    """Serve until interrupted or terminated.

    Raises:
        ConfigError: there is no such folder.
        InfraError: the address is taken.
    """
    token = config.token or (None if config.host in LOOPBACK else secrets.token_urlsafe(24))
    replays = Replays()
    app = create_app(root, token, config.hosts, None if config.read_only else replays)
    ended = asyncio.Event()
    for ending in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(ending, ended.set)
    with contextlib.closing(replays), contextlib.closing(listening(config.host, config.port)) as listener:
        async with serve_app(app, listener, Limits()):
            announce(f"{address(listener, config.host)}/{f'?token={token}' if token else ''}")
            await ended.wait()
