"""Several processes that serve one gateway: which of them a session belongs to, and the front process.

Each worker listens on a port of its own, and a session belongs to exactly one of them until it is sealed: its number
is a checksum of the session's id, so every process can compute it. A request that reaches another process is
redirected (307, which keeps method and body); none but the session's own worker ever reads or writes its tree.

The front process opens sessions at the workers in turn, and the address that a client is given is its worker's: turns
never pass through the front.
"""

from __future__ import annotations

import asyncio
import secrets
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import httpx
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentrl.common.deadline import HEALTH_SECONDS
from agentrl.sessions.gateway.http.api_error import ApiError, Style
from agentrl.sessions.gateway.http.tls import Tls

OPEN_SECONDS = 60.0
"""Seconds for a worker to open a session; one that is starting answers once it has started. After a time-out another
worker opens the session, and the first one's, if it opens one after all, stays unused."""
KEY_FIELD = "api_key"
"""The query field that holds the session's key after a redirect."""
FORWARDED = ("authorization", "x-api-key", "content-type", "content-encoding")
"""Header fields that are forwarded with a request for a new session."""


@dataclass(frozen=True)
class SessionShard:
    """One worker's share of the sessions."""

    number: int
    ports: Sequence[int]

    def has(self, session_id: str) -> bool:
        """Return whether a session belongs to this worker."""
        return worker_of(session_id, len(self.ports)) == self.number

    def port_of(self, session_id: str) -> int:
        """The port of the worker that a session belongs to."""
        return self.ports[worker_of(session_id, len(self.ports))]


def worker_of(session_id: str, workers: int) -> int:
    """The number of the worker that a session belongs to."""
    return zlib.crc32(session_id.encode()) % workers


def new_session_id(shard: SessionShard | None) -> str:
    """An id for a new session of this worker."""
    while True:
        session_id = secrets.token_hex(8)
        if shard is None or shard.has(session_id):
            return session_id


def session_in(path: str) -> str | None:
    """The session id in a request's path; None if there is none."""
    parts = path.split("/", 3)
    return parts[2] if len(parts) > 2 and parts[:2] == ["", "sessions"] and parts[2] else None


def root_url(request: Request, port: int) -> str:
    """The address of another port of the host that the client has reached."""
    host = request.url.hostname or "127.0.0.1"
    return f"{request.url.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def bearer_key(request: Request) -> str:
    """The key in the `Authorization` header; '' if there is none."""
    header = request.headers.get("authorization", "")
    return header[7:].strip() if header[:7].lower() == "bearer " else ""


def redirect(request: Request, session_id: str, port: int) -> Response:
    """Redirect to the same path and query at another port.

    Clients leave `Authorization` out when they follow a redirect to another port, so its key goes into the query.
    """
    key = bearer_key(request)
    fields = [request.url.query, urlencode({KEY_FIELD: key}) if key else ""]
    query = "?" + "&".join(filter(None, fields)) if any(fields) else ""
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    path = raw.partition(b"?")[0].decode("latin-1")
    root = root_url(request, port)
    message = (
        f"session {session_id!r} is not served here, it is at {root}: use the base_url that POST /sessions returned"
    )
    error = ApiError(307, message, "other_worker")
    return _json(error.body(style_of(request)), 307, {"location": f"{root}{path}{query}"})


def style_of(request: Request) -> Style:
    """The protocol in which errors are written."""
    path = request.url.path
    if "/v1beta/" in path or ("/v1/models/" in path and ":" in path.rpartition("/")[2]):
        return "google"
    return "anthropic" if "/v1/messages" in path else client_style(request)


def client_style(request: Request) -> Style:
    """The protocol of a client's package, by the headers that it sends with all requests."""
    if "anthropic-version" in request.headers:
        return "anthropic"
    googles = any(name in request.headers for name in ("x-goog-api-client", "x-goog-api-key"))
    return "google" if googles else "openai"


class Front:
    """The front process's web application.

    Args:
        host: the address that workers listen on.
        ports: each worker's port.
        is_running: whether the worker of a number is running.
        body_bytes: the largest body of a request for a session.
        tls: what workers serve HTTPS with; None is plain HTTP.
    """

    def __init__(
        self,
        host: str,
        ports: Sequence[int],
        is_running: Callable[[int], bool],
        body_bytes: int,
        tls: Tls | None = None,
    ) -> None:
        local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        name = f"[{local}]" if ":" in local else local
        self._urls = [f"{'https' if tls else 'http'}://{name}:{port}" for port in ports]
        self._ports, self._is_running, self._body_bytes = ports, is_running, body_bytes
        self._next = 0
        self._http = httpx.AsyncClient(timeout=OPEN_SECONDS, trust_env=False, verify=tls.trusted() if tls else True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        session_id = session_in(request.url.path)
        try:
            if session_id is not None:
                response = redirect(request, session_id, self._ports[worker_of(session_id, len(self._ports))])
            elif (request.method, request.url.path) == ("POST", "/sessions"):
                response = await self._open(request)
            elif (request.method, request.url.path) == ("GET", "/health"):
                response = await self._health()
            else:
                raise ApiError(404, f"{request.method} {request.url.path[:200]}: there is no such address", "not_found")
        except ApiError as error:
            response = _json(error.body(style_of(request)), error.status, error.headers)
        await response(scope, receive, send)

    async def _open(self, request: Request) -> Response:
        """Open a session at the next worker that answers."""
        if int(request.headers.get("content-length") or 0) > self._body_bytes:
            raise ApiError(413, f"the body is larger than {self._body_bytes} bytes", "body_too_large")
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > self._body_bytes:
                raise ApiError(413, f"the body is larger than {self._body_bytes} bytes", "body_too_large")
        headers = {name: request.headers[name].strip() for name in FORWARDED if name in request.headers}
        for _ in self._ports:
            number, self._next = self._next, (self._next + 1) % len(self._ports)
            if not self._is_running(number):
                continue
            try:
                reply = await self._http.post(f"{self._urls[number]}/sessions", content=body, headers=headers)
            except httpx.TransportError:
                continue
            answer: dict[str, Any] = orjson.loads(reply.content)
            if reply.status_code == 201:
                own = f"{root_url(request, self._ports[number])}/sessions/{answer['id']}"
                answer |= {"base_url": f"{own}/v1", "anthropic_base_url": own, "google_base_url": own}
            kept = {name: reply.headers[name] for name in ("retry-after", "x-should-retry") if name in reply.headers}
            return _json(answer, reply.status_code, kept)
        raise ApiError(503, "no worker is running; all are being restarted", "no_worker", retry_after=1)

    async def _health(self) -> Response:
        """The workers' health reports, and whether any of them can serve."""

        async def one(number: int) -> dict[str, Any]:
            down = {"ok": False, "running": 0, "waiting": 0, "in_flight": 0, "gone": False}
            if not self._is_running(number):
                return {**down, "detail": f"worker {number} has ended and is being restarted"}
            try:
                reply = await self._http.get(f"{self._urls[number]}/health", timeout=HEALTH_SECONDS)
                return dict(orjson.loads(reply.content))
            except (httpx.TransportError, ValueError) as error:
                return {**down, "detail": f"worker {number} does not answer: {error!r}"}

        each = await asyncio.gather(*map(one, range(len(self._ports))))
        ok = any(answer["ok"] for answer in each)
        report = {
            "ok": ok,
            "running": max(answer["running"] for answer in each),  # all workers share one engine
            "waiting": max(answer["waiting"] for answer in each),
            "in_flight": sum(answer["in_flight"] for answer in each),
            "gone": all(answer["gone"] for answer in each),
            "detail": "; ".join(dict.fromkeys(answer["detail"] for answer in each if answer["detail"])),
            "workers": each,
        }
        return _json(report, 200 if ok else 503)

    async def aclose(self) -> None:
        """Close the connections to the workers."""
        await self._http.aclose()


def _json(value: Any, status: int, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers, "application/json")
