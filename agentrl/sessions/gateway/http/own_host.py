"""Requests that are meant for this server: by their Host and Origin headers.

A browser on this machine also visits other sites. A site whose name was pointed at this machine (DNS rebinding) has its
own name in the Host header, and a page of another site its own in Origin; neither may ask a server that trusts whoever
reaches it. Programs send no Origin.
"""

from __future__ import annotations

import functools
import ipaddress
import socket
from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class Hosts:
    """The names by which this server may be asked.

    Args:
        names: besides this machine's.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        own = {"localhost", socket.gethostname(), socket.getfqdn()}
        self._names = {name.lower().rstrip(".") for name in (*own, *names)}
        self.has = functools.lru_cache(maxsize=64)(self._has)  # clients send the same one with each request

    def _has(self, host: str) -> bool:
        """Return whether a Host header names this server: an IP address can't be pointed elsewhere, a name can."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        name = name.lower().rstrip(".").removeprefix("[").removesuffix("]")
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def is_own_origin(request: Request) -> bool:
    """Return whether the page that asks is of this server, by a header that browsers set and no script can change."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin", "")
    return origin in (f"http://{host}", f"https://{host}")


class OwnHost:
    """Middleware: refuses requests whose Host is not this server, or that a page of another site sends."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http":
            request = Request(scope)
            host = request.headers.get("host", "")
            if not self._hosts.has(host):
                app = PlainTextResponse(f"Host {host!r} is not this server; hosts=[NAME] allows another name\n", 421)
            elif "origin" in request.headers and not is_own_origin(request):
                app = PlainTextResponse("pages of other sites may not ask this server\n", 403)
        await app(scope, receive, send)
