"""A judge behind HTTP that fails as services do, where the answer that it is to judge says so."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAILURES = ("reset", "late", "429", "500", "garbage", "truncated", "short", "silent", "wordless", "beyond")
"""The ways in which a service fails, but for one that is not there."""


class JudgeServer(ThreadingHTTPServer):
    """Gives the verdict of `says`, which is asked with the question; counts requests."""

    daemon_threads = True
    request_queue_size = 512
    requests = 0
    keys: set[str | None]
    over: threading.Event
    refuses: int | None = None
    says: Callable[[str], str] = staticmethod(lambda question: "Score: 5")

    def handle_error(self, *_: Any) -> None:
        """Clients that gave up are no matter."""

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]}:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: JudgeServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        question = body["messages"][-1]["content"] if "messages" in body and "model" in body else json.dumps(body)
        self.server.requests += 1
        self.server.keys.add(self.headers["authorization"])
        mode = next((each for each in FAILURES if f"fails: {each}." in question), "")
        verdict = {"wordless": "I would rather not say.", "beyond": "Score: 11"}.get(mode) or self.server.says(question)
        good = json.dumps({"choices": [{"message": {"content": verdict}}], "score": 0.5}).encode()
        if mode == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
        elif mode == "late":
            self.server.over.wait()
        elif self.server.refuses:
            self.answer(self.server.refuses, b"{}")
        elif mode in ("429", "500"):
            self.answer(int(mode), b'{"error": "busy"}')
        elif mode == "short":
            self.answer(200, good[:-9], len(good))
        else:
            odd = {"garbage": b"<html>502 Bad Gateway</html>", "truncated": good[:-9], "silent": b""}
            self.answer(200, odd.get(mode, good))

    def answer(self, status: int, data: bytes, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(data) if length is None else length))
        self.end_headers()
        self.wfile.write(data)
        if length is not None:
            self.close_connection = True

    def log_message(self, *_: object) -> None: ...


@contextmanager
def serving(says: Callable[[str], str] = lambda question: "Score: 5", host: str = "127.0.0.1") -> Iterator[JudgeServer]:
    server = JudgeServer((host, 0), Handler)
    server.over, server.keys = threading.Event(), set()
    server.says = says  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def part(name: str, question: str) -> str:
    """What is quoted in a question under a name."""
    found = re.search(rf"<{name}-\w+>\n(.*?)\n</{name}-", question, re.DOTALL)
    assert found is not None, question
    return found[1]
