"""The sites of this process's episodes, served on one port of localhost by one thread.

Every episode has a session of a site, whose number is in a cookie that the agent neither sees nor sets. A site's name,
such as shop.test, is the request's Host; one that is not the session's is refused, so that no page of another origin
that a browser of this machine shows can use a session. Browsers resolve the names themselves: nothing of the port is in
what the agent reads.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from agentrl.envs.builtin.web.markup import document
from agentrl.tools.threads import in_forked_child

COOKIE = "session"
MAX_BODY = 64 << 10
"""Bytes of a request's body."""
MAX_FIELDS = 100
READ_SECONDS = 30.0
"""Seconds that a connection may send nothing."""


class Site(Protocol):
    """One session of a site; what it holds is what rewards read.

    `get` changes nothing: a page is a function of the state, so that a browser can be restored by loading it again.

    Attributes:
        host: the site's name.
        ended: whether the task can't be changed any more, as an order is placed.
    """

    host: str

    @property
    def ended(self) -> bool:
        """Return whether what the agent was asked for is done, rightly or not."""
        ...

    def get(self, path: str, query: Mapping[str, str]) -> str | None:
        """A page as HTML; None where there is none."""
        ...

    def post(self, path: str, fields: Mapping[str, str]) -> str | None:
        """Do something; the path, encoded, of the page that shows the result, None where there is nothing to do."""
        ...

    def state(self) -> dict[str, Any]:
        """All that has changed, as plain data."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        ...


class Sites:
    """The sessions of this process and the server that answers their requests.

    Attributes:
        port: of 127.0.0.1, chosen by the system.
        sessions: each open one's site, and what keeps requests to it apart, by the session's number.
    """

    def __init__(self) -> None:
        self.sessions: dict[str, tuple[Site, threading.Lock]] = {}
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"sites": self}))
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="agentrl-sites", daemon=True).start()

    def open(self, site: Site) -> str:
        """Begin a session; its number, for the cookie."""
        number = secrets.token_urlsafe(16)
        self.sessions[number] = site, threading.Lock()
        return number

    def close(self, number: str) -> None:
        """End a session; harmless the second time."""
        self.sessions.pop(number, None)

    def find(self, number: str) -> tuple[Site, threading.Lock] | None:
        """A session's site, and what keeps requests to it apart."""
        return self.sessions.get(number)


_sites: Sites | None = None
_lock = threading.Lock()


@in_forked_child
def _forget_sites() -> None:
    """The thread that serves them is the parent's."""
    global _sites, _lock
    _sites, _lock = None, threading.Lock()


def sites() -> Sites:
    """The process's one server, started at first use."""
    global _sites
    with _lock:
        if _sites is None:
            _sites = Sites()
        return _sites


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # episodes side by side


class _Handler(BaseHTTPRequestHandler):
    """One request; the connection ends with it, so that nothing is held between two calls of an agent."""

    sites: Sites
    timeout = READ_SECONDS
    wbufsize = -1  # head and body leave together: else the body may wait for an acknowledgement of the head
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        found = self._session()
        if found is None:
            return
        site, lock = found
        parts = urlsplit(self.path)
        with lock:
            page = site.get(parts.path, _fields(parts.query))
        self._send(HTTPStatus.OK if page is not None else HTTPStatus.NOT_FOUND, page)

    def do_POST(self) -> None:
        """Do something, and send the browser to the page that shows the result."""
        found = self._session()
        if found is None:
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or int(length) > MAX_BODY:
            self._send(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        site, lock = found
        fields = _fields(self.rfile.read(int(length)).decode(errors="replace"))
        with lock:
            path = site.post(urlsplit(self.path).path, fields)
        if path is None:
            self._send(HTTPStatus.NOT_FOUND)
            return
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", path)
        self.end_headers()

    def _session(self) -> tuple[Site, threading.Lock] | None:
        """The session of the request's cookie; None, and an answer, where it may not use one."""
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(COOKIE)
        except CookieError:
            cookie = None
        found = None if cookie is None else self.sites.find(cookie.value)
        if found is None:
            self._send(HTTPStatus.FORBIDDEN)
        elif self.headers.get("Host") != found[0].host:
            self._send(HTTPStatus.MISDIRECTED_REQUEST)
            return None
        return found

    def _send(self, status: HTTPStatus, page: str | None = None) -> None:
        body = (page or document(status.phrase)).encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a request is in the session already, as the agent's call."""


def _fields(encoded: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(encoded, keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError:  # more fields than that
        return {}
