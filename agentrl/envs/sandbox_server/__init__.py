"""`agentrl sandbox serve`: this machine's sandboxes for processes on other machines, over HTTP.

A call of `Sandbox` is a request (`tools/sandbox/remote/wire.py`); sandboxes come from a pool, as for episodes here.
What a client holds ends when nothing was heard from it for a while, and a request whose connection ends is cancelled. A
client with the key is trusted with what a sandbox is given, and not with this machine: what a specification may ask for
has limits, and what loosens it is refused unless the settings name it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator
from typing import Any

from rich.console import Console

from agentrl.common.concurrency import cancel_on
from agentrl.envs.sandbox_server.app import SandboxServer
from agentrl.envs.sandbox_server.config import SandboxServerConfig
from agentrl.overrides import validate
from agentrl.tools.sandbox.remote.wire import read_key

__all__ = ["SandboxServer", "SandboxServerConfig", "running", "serve_sandboxes"]
logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def running(config: SandboxServerConfig) -> AsyncIterator[str]:
    """Serve sandboxes while the block runs; yields the address.

    Raises:
        ConfigError: there is no key, or `tls_certificate` and `tls_key` don't fit.
        InfraError: the address is taken.
    """
    from agentrl.sessions.gateway.http.listener import address, listening, served
    from agentrl.sessions.gateway.http.own_host import Hosts, OwnHost
    from agentrl.sessions.gateway.http.tls import Tls
    from agentrl.sessions.gateway.limits import Limits

    tls = Tls.of(config.tls_certificate, config.tls_key)
    server = SandboxServer(config, read_key(config.key_file, "key_file"))
    if tls is None and config.host not in ("127.0.0.1", "::1", "localhost"):
        logger.warning("host=%s without tls_certificate: the key and all files are sent unencrypted", config.host)
    with listening(config.host, config.port) as listener:
        async with served(OwnHost(server, Hosts(config.hosts)), listener, Limits(), tls):
            leases = asyncio.ensure_future(server.end_leases())
            try:
                yield address(listener, config.host, tls)
            finally:
                leases.cancel()
                await server.aclose()


def serve_sandboxes(tree: dict[str, Any], out: Console) -> None:
    """Serve until interrupted or terminated; then every sandbox is removed.

    Raises:
        ConfigError: a setting is unknown, or of the wrong type; see `running`.
    """
    config = validate(tree, SandboxServerConfig)

    async def serve() -> None:
        cancel_on(signal.SIGTERM, signal.SIGINT)
        async with running(config) as url:
            out.print(f"sandboxes are served on {url}", highlight=False, soft_wrap=True)
            await asyncio.Event().wait()

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(serve())
