"""Protection of the viewer: the callers that it answers, and what its pages may do.

Sessions are untrusted text, and a browser that shows them also visits other sites. So every answer carries a policy by
which a page runs only the viewer's own scripts and reaches only the viewer; a request must name this server in its
Host header, which a site whose name was pointed at this machine (DNS rebinding) does not; and where others can reach
the port, a token is needed, compared in constant time and kept in a cookie that scripts can't read. What changes
something is a POST, taken from the viewer's own page alone (its Origin is this server) and as JSON, which a form of
another site can't send.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrl.sessions.gateway.http.own_host import Hosts, is_own_origin

METHODS = ("GET", "HEAD", "POST")
COOKIE = "agentrl_view"
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""`trusted-types 'none'`: no script can make markup out of text, the viewer's own included."""


class Guard:
    """Middleware: checks method, Host, origin and token, and adds `HEADERS`."""

    def __init__(self, app: ASGIApp, token: str | None, hosts: Iterable[str] = ()) -> None:
        self._app, self._token = app, token
        self._hosts = Hosts(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [pair for pair in message.get("headers", ()) if pair[0].decode("latin-1") not in HEADERS]
                message["headers"] = kept + [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            await send(message)

        request = Request(scope)
        answer = self._refuse(request)
        await (self._app if answer is None else answer)(scope, receive, guarded)

    def _refuse(self, request: Request) -> Response | None:
        if request.method not in METHODS:
            allowed = ", ".join(METHODS)
            return JSONResponse({"error": f"{request.method} is not among {allowed}"}, 405, {"allow": allowed})
        host = request.headers.get("host", "")
        if not self._hosts.has(host):
            return PlainTextResponse(f"Host {host!r} is not this server; hosts=[NAME] allows another name\n", 421)
        if request.method == "POST" and not self._is_own_page(request):
            return JSONResponse({"error": "only the viewer's own page may change anything"}, 403)
        if self._token is None:
            return None
        given = request.query_params.get("token")
        if given is not None and self._fits(given):
            return self._let_in(request)
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._fits(request.cookies.get(self._cookie(request), "")) or self._fits(bearer):
            return None
        return PlainTextResponse("a token is needed: open the address that `agentrl view` printed\n", 401)

    def _let_in(self, request: Request) -> Response:
        """Keep the token in a cookie, and out of the address."""
        rest = urlencode([pair for pair in request.query_params.multi_items() if pair[0] != "token"])
        # not the request's URL: "//elsewhere" as a path would lead away
        answer = RedirectResponse(f"/{'?' if rest else ''}{rest}", 303)
        answer.set_cookie(self._cookie(request), self._token or "", httponly=True, samesite="strict", path="/")
        return answer

    def _is_own_page(self, request: Request) -> bool:
        """True if a page of this server asks, by headers that browsers set and no script can change."""
        return request.headers.get("sec-fetch-site", "same-origin") == "same-origin" and is_own_origin(request)

    def _cookie(self, request: Request) -> str:
        """Cookies don't know ports: two viewers on one machine have names of their own."""
        return f"{COOKIE}_{request.url.port or 80}"

    def _fits(self, given: str) -> bool:
        return self._token is not None and hmac.compare_digest(given.encode(), self._token.encode())
