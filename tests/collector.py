"""A collector of spans, as tests run one."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.conftest import need


class Collector(ThreadingHTTPServer):
    """Answers OTLP/HTTP once it may, and keeps what it was sent."""

    daemon_threads = True

    def __init__(self) -> None:
        collector, self.bodies, self.answers = self, list[tuple[str, bytes]](), threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.bodies.append((self.path, body))
                collector.answers.wait(60)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector, for the time of the block."""
    need(
        importlib.util.find_spec("opentelemetry.exporter") is not None,
        "OpenTelemetry's OTLP exporter (the extra tracing)",
    )
    server = Collector()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.answers.set()
    server.shutdown()
    server.server_close()
