"""Prometheus: the last step's numbers on an address of the driver."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from agentrl.prometheus import TYPE, page
from agentrl.train.trackers.base import TrackedRun, Tracker

SECONDS = 10.0
"""Seconds that a request may take."""


class Prometheus(Tracker):
    """`metrics=[prometheus]`: GET http://`metrics_address`/metrics is answered with the run's last step."""

    rewritten = True

    def __init__(self, about: TrackedRun) -> None:
        self._labels, self._page = {"run": about.name}, b""
        host, _, port = about.address.rpartition(":")
        self._server = ThreadingHTTPServer((host, int(port)), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="agentrl-prometheus", daemon=True).start()

    @property
    def port(self) -> int:
        """The port, also where a free one was taken (0)."""
        return self._server.server_port

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._page = page({"step": step, **numbers}, self._labels)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        tracker = self

        class Handler(BaseHTTPRequestHandler):
            timeout = SECONDS

            def do_GET(self) -> None:
                known = self.path == "/metrics"
                body = tracker._page if known else b"GET /metrics\n"
                self.send_response(200 if known else 404)
                self.send_header("Content-Type", TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Write nothing for each request."""

        return Handler
