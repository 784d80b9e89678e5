"""The sandbox server's application: who may ask, for which sandboxes, and how long they are kept."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, TypeVar

import msgspec
from pydantic import ValidationError

from agentrl import prometheus
from agentrl.envs.sandbox_server.config import SandboxServerConfig
from agentrl.envs.sandbox_server.held import METHODS, HeldSandbox
from agentrl.envs.sandboxes import Supplier
from agentrl.errors import AgentRLError, ConfigError, DeadlineExceeded, InvalidInput, SandboxError
from agentrl.tools.sandbox.base import PathError, SandboxDied
from agentrl.tools.sandbox.remote.wire import CLIENT, Created, Failure
from agentrl.tools.sandbox.spec import SandboxSpec

logger = logging.getLogger(__name__)
T = TypeVar("T")
BODY_SECONDS = 30.0
"""A part of a request's body must arrive within them."""


class Opening(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of `create`.

    Attributes:
        spec: a specification as JSON.
        fork_of: the id of a sandbox whose specification and files it gets instead.
    """

    spec: str
    fork_of: str | None


class _Client:
    """A process that has sandboxes here.

    Attributes:
        heard: when it last sent something, in seconds of `time.monotonic()`.
        sandboxes: by the ids that it has made up.
        closed: ids that it closed before their sandboxes were there.
    """

    def __init__(self) -> None:
        self.heard = time.monotonic()
        self.sandboxes: dict[str, HeldSandbox] = {}
        self.closed: set[str] = set()


class SandboxServer:
    """The ASGI application."""

    def __init__(self, config: SandboxServerConfig, key: str) -> None:
        self.config, self._authorization = config, f"Bearer {key}".encode()
        self.supplier = Supplier(config.sandbox, config.reuse != "never", config.sandboxes)
        self.clients: dict[bytes, _Client] = {}
        self.counts: Counter[str] = Counter()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        status, content = await self._answer(scope, dict(scope["headers"]), receive)
        headers = [(b"content-length", str(len(content)).encode())]
        if status in (401, 413):  # the body was not read
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _answer(
        self, scope: MutableMapping[str, Any], headers: dict[bytes, bytes], receive: Any
    ) -> tuple[int, bytes]:
        self.counts["requests"] += 1
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._authorization):
            self.counts["refused"] += 1
            return 401, b"the key is wrong, or there is none\n"
        if scope["path"] == "/metrics":
            return 200, prometheus.page(self.numbers())
        name, parts = headers.get(CLIENT.encode(), b""), scope["path"].split("/")[1:]
        if scope["method"] != "POST" or len(name) < 16 or (parts != ["alive"] and len(parts) != 3):
            return 404, b"see agentrl/tools/sandbox/remote/wire.py\n"
        client = self.clients.setdefault(name, _Client())
        client.heard = time.monotonic()
        try:
            body = await self._body(headers, receive)
            if parts == ["alive"]:
                self.counts["renewals"] += 1
                return 200, b""
            result = await _unless_left(self._run(name, client, parts[1], parts[2], body), receive)
            content = msgspec.msgpack.encode(result)
            if len(content) > self.config.request_bytes:
                raise PathError(f"{len(content)} bytes are too many for an answer ({self.config.request_bytes})")
        except AgentRLError as error:
            return 413 if isinstance(error, _TooLarge) else 422, msgspec.msgpack.encode(Failure.of(error))
        except (msgspec.MsgspecError, ValidationError) as error:
            return 422, msgspec.msgpack.encode(Failure("InvalidInput", f"a call of another form: {error}"))
        except Exception as error:
            logger.exception("a sandbox server's call failed")
            return 500, msgspec.msgpack.encode(Failure.of(error))
        self.counts["bytes_sent"] += len(content)
        if held := client.sandboxes.get(parts[1]):
            held.sent += len(content)
        return 200, content

    async def _body(self, headers: dict[bytes, bytes], receive: Any) -> bytes:
        body, more, most = bytearray(), True, self.config.request_bytes
        declared = int(headers.get(b"content-length", b"0"))
        while more:
            try:
                event = {} if declared > most else await asyncio.wait_for(receive(), BODY_SECONDS)
            except TimeoutError:
                raise SandboxError("the request did not arrive in time") from None
            if event.get("type") == "http.disconnect":
                raise SandboxError("the client hung up")
            body += event.get("body", b"")
            more = event.get("more_body", False)
            if max(declared, len(body)) > most:
                raise _TooLarge(f"a request may have {most} bytes")
        self.counts["bytes_received"] += len(body)
        return bytes(body)

    async def _run(self, name: bytes, client: _Client, id: str, method: str, body: bytes) -> Any:
        if method == "create":
            return await self._create(name, client, id, msgspec.msgpack.decode(body, type=Opening))
        held = client.sandboxes.get(id)
        if held is None and method == "close":
            client.closed.add(id)
            return None
        if held is None:
            raise SandboxDied("the sandbox server does not have it: it was closed, or its lease or the server ended")
        if method == "close":
            return await self._release(client, id)
        if method not in METHODS:
            raise InvalidInput(f"there is no method {method!r}")
        held.received += len(body)
        function, arguments = METHODS[method]
        return await function(held, **msgspec.structs.asdict(msgspec.msgpack.decode(body, type=arguments)))

    async def _create(self, name: bytes, client: _Client, id: str, opening: Opening) -> Created:
        source = client.sandboxes.get(opening.fork_of) if opening.fork_of else None
        if id in client.sandboxes or (opening.fork_of and source is None):
            raise InvalidInput("the id is taken, or there is no sandbox to fork")
        spec = source.spec if source else SandboxSpec.model_validate_json(opening.spec)
        self._check(spec)
        await self.supplier.check(spec)
        snapshot = await source.sandbox.snapshot() if source else None
        try:
            sandbox = await self.supplier.pool.acquire(spec, self.config.wait)
        except DeadlineExceeded as error:
            raise SandboxError(f"the sandbox server, of {self.config.sandboxes} places: {error}") from None
        try:
            if snapshot is not None:
                await sandbox.restore(snapshot)
            if id in client.closed or self.clients.get(name) is not client:
                raise SandboxDied("the client closed the sandbox before it was there")
        except BaseException:
            await asyncio.shield(self.supplier.release(sandbox))
            raise
        client.sandboxes[id] = HeldSandbox(sandbox, spec, self.config)
        return Created(sandbox.workdir, self.config.lease, self.config.request_bytes)

    def _check(self, spec: SandboxSpec) -> None:
        """Refuse a specification that asks for more than clients are given."""
        asked = {words.partition("=")[0] for words in spec.loosened}
        asked |= {field for field in ("daemon", "runtime", "egress") if getattr(spec, field)}
        if refused := sorted(asked - {*self.config.allow}):
            raise ConfigError(f"the sandbox server gives clients no {', '.join(refused)} (its setting `allow`)")
        for field, most in self.config.largest.items():
            if (getattr(spec, field) or 0) > most:
                raise ConfigError(f"the sandbox server gives {field}={most:g} at most (its setting `largest`)")

    async def _release(self, client: _Client, id: str) -> None:
        if held := client.sandboxes.pop(id, None):
            logger.info("sandbox %s is given back: %d bytes in, %d out", held.sandbox.id, held.received, held.sent)
            await self.supplier.release(held.sandbox)

    async def end_leases(self) -> None:
        """End what belongs to clients that are not heard any more, until cancelled."""
        while True:
            await asyncio.sleep(self.config.lease / 4)
            for name, client in list(self.clients.items()):
                if time.monotonic() - client.heard > self.config.lease:
                    del self.clients[name]
                    self.counts["leases_ended"] += bool(client.sandboxes)
                    for id in list(client.sandboxes):
                        await self._release(client, id)

    def numbers(self) -> dict[str, float]:
        """Counters for `/metrics`."""
        held = [one for client in self.clients.values() for one in client.sandboxes.values()]
        counts = {**self.supplier.pool.counts, **self.counts, "held": len(held), "clients": len(self.clients)}
        return {f"sandboxes/{name}": float(value) for name, value in counts.items()}

    async def aclose(self) -> None:
        """Remove every sandbox; what runs in them fails."""
        await self.supplier.pool.close()


class _TooLarge(PathError):
    """A request of more bytes than are taken."""


async def _await_disconnect(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _unless_left(work: Coroutine[Any, Any, T], receive: Callable[[], Awaitable[Any]]) -> T:
    """The result of some work, which is cancelled where the client hangs up."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_await_disconnect(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            await asyncio.wait({working})
            raise SandboxError("the client hung up")
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
