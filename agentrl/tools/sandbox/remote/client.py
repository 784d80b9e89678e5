"""One sandbox server, as a client's process uses it: requests, their deadlines, and the lease of its sandboxes there.

A lost answer may have had its effect, so no call is sent twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from agentrl.errors import AgentRLError, ConfigError, SandboxError
from agentrl.tools.sandbox.base import PathError, SandboxDied
from agentrl.tools.sandbox.remote.wire import CLIENT, VARIABLE, Created, Failure, read_key
from agentrl.tools.sandbox.spec import SandboxSpec

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)
CONNECT_SECONDS = 10.0
SECONDS = 200.0
"""Seconds for most answers: longer than the server's own deadline for files, whose reason says more."""
LONG_SECONDS = 660.0
"""Seconds for answers that may wait for a free place, or move a whole sandbox."""
IDLE_SECONDS = 30.0
"""An idle connection is not used again after them; the server closes one later."""


class SandboxServerClient:
    """One sandbox server, as this process uses it. All of it runs on the sandboxes' event loop.

    Args:
        url: its address.
        key_file: a file with the key; None: the variable AGENTRL_SANDBOX_KEY has it.
        certificate: a PEM file with the authority to trust, or with the server's own certificate; None: the system's.

    Raises:
        ConfigError: the address is none, or there is no key or certificate.
    """

    def __init__(self, url: str, key_file: str | None = None, certificate: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"sandbox.url={url!r} must be http://HOST:PORT or https://HOST:PORT")
        self.url = url.rstrip("/")
        key = read_key(key_file, "sandbox.key_file")
        self._headers = {"authorization": f"Bearer {key}", CLIENT: secrets.token_hex(16)}
        try:
            self._tls = ssl.create_default_context(cafile=certificate)
        except OSError as error:
            raise ConfigError(f"sandbox.certificate={certificate}: {error}") from None
        self._http: httpx.AsyncClient | None = None
        self._held: set[str] = set()
        self._beat: asyncio.Task[None] | None = None
        self._largest = 0

    async def check(self) -> None:
        """Ask the server whether it is there and takes the key.

        Raises:
            ConfigError: it is not, or does not.
        """
        self._held.add("check")
        try:
            await self._post("/alive", b"", CONNECT_SECONDS)
        except SandboxError as error:
            raise ConfigError(f"sandbox.url={self.url}: no sandbox server answers there: {error}") from None
        finally:
            await self._forget("check")

    async def open(self, spec: SandboxSpec, fork_of: str | None = None) -> tuple[str, Created]:
        """Start a sandbox, or fork the one of an id; whatever came of it is closed where the answer does not arrive."""
        id = secrets.token_hex(16)
        self._held.add(id)
        try:
            given = {"spec": spec.model_dump_json(), "fork_of": fork_of}
            created: Created = await self.call(id, "create", Created, LONG_SECONDS, given)
        except BaseException:
            await asyncio.shield(self.close(id))
            raise
        self._largest = created.request_bytes
        if self._beat is None:
            self._beat = asyncio.ensure_future(self._keep(created.lease / 3))
        return id, created

    async def call(self, id: str, method: str, answer: Any, seconds: float, arguments: Mapping[str, Any]) -> Any:
        """Make one call.

        Raises:
            SandboxDied: no answer came.
            AgentRLError: what the server says.
        """
        try:
            body = msgspec.msgpack.encode(arguments)
        except (UnicodeEncodeError, OverflowError) as error:
            raise PathError(f"what can't be sent to a sandbox server: {error}") from None
        if 0 < self._largest < len(body):
            raise PathError(f"{len(body)} bytes are too many: the sandbox server takes {self._largest} in a request")
        content = await self._post(f"/sandboxes/{id}/{method}", body, seconds)
        try:
            return msgspec.msgpack.decode(content, type=answer)
        except (msgspec.MsgspecError, ValueError) as error:
            raise SandboxDied(f"the sandbox server {self.url} answers something else: {error}") from None

    async def _post(self, path: str, body: bytes, seconds: float) -> bytes:
        import httpx  # by need: settings name this module in every run

        if self._http is None:
            self._http = self._connections()
        timeout = httpx.Timeout(SECONDS, connect=CONNECT_SECONDS, read=seconds, pool=None)
        try:
            answer = await self._http.post(self.url + path, content=body, timeout=timeout)
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: the connections were closed meanwhile
            reason = f"{type(error).__name__} {error}".strip()
            raise SandboxDied(f"the connection to the sandbox server {self.url} failed: {reason}") from None
        if answer.status_code == 200:
            return answer.content
        if answer.status_code == 401:
            raise ConfigError(f"the sandbox server {self.url} refuses the key (sandbox.key_file, or {VARIABLE})")
        try:
            failure = msgspec.msgpack.decode(answer.content, type=Failure)
        except (msgspec.MsgspecError, ValueError):
            text = answer.text[:200].strip()
            raise SandboxDied(f"the sandbox server {self.url} answers {answer.status_code}: {text}") from None
        raise failure.error()

    def _connections(self) -> httpx.AsyncClient:
        import httpx

        options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
        if hasattr(socket, "TCP_KEEPIDLE"):  # a machine that lost its power is noticed within a minute
            values = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
            options += [(socket.IPPROTO_TCP, option, value) for option, value in values.items()]
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=IDLE_SECONDS)
        transport = httpx.AsyncHTTPTransport(verify=self._tls, limits=limits, socket_options=options)
        return httpx.AsyncClient(transport=transport, headers=self._headers, trust_env=False)

    async def _keep(self, interval: float) -> None:
        """Renew the lease while there are sandboxes; whether it has ended is said by the next call."""
        while self._held:
            await asyncio.sleep(interval)
            with contextlib.suppress(AgentRLError):
                await self._post("/alive", b"", interval)

    async def close(self, id: str) -> None:
        """Give a sandbox back, once; where the server can't be told, it ends with the lease."""
        if id not in self._held:
            return
        try:
            await self.call(id, "close", None, SECONDS, {})
        except (SandboxError, ConfigError) as error:
            logger.info("a sandbox could not be given back: %s", error)
        finally:
            await self._forget(id)

    async def _forget(self, id: str) -> None:
        """Hold a sandbox no longer; with the last one the connections are closed."""
        self._held.discard(id)
        if not self._held and self._http is not None:
            http, self._http = self._http, None
            if self._beat is not None:
                self._beat.cancel()
                self._beat = None
            await http.aclose()
