"""The parts of `benchmarks.soak`'s run that can fail beside the run itself: sandboxes, and a reward service.

`python -m benchmarks.soak_parts PORT PID_FILE` is the reward service.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from agentrl.envs.builtin.calculator import Calculator
from agentrl.envs.sandboxes import supplier
from agentrl.tools.sandbox.base import Sandbox
from agentrl.tools.sandbox.spec import SandboxSpec
from agentrl.tools.tool import tool
from agentrl.types import Task

SPEC = SandboxSpec(memory_mb=128, pids=32, tmpfs_mb={"/work": 8, "/tmp": 8})


class SandboxCalculator(Calculator):
    """The calculator, whose results pass through a file in a sandbox of the episode's own.

    Args:
        sandbox: docker or subprocess.
    """

    def __init__(self, sandbox: str = "docker", max_steps: int = 2, seed: int = 0) -> None:
        super().__init__(max_steps=max_steps, seed=seed)
        self._sandboxes = supplier(sandbox)
        self._opening: asyncio.Task[Sandbox] | None = None

    async def prepare(self, tasks: Sequence[Task], sessions: int) -> None:
        """Have a few sandboxes created."""
        await self._sandboxes.check(SPEC)
        await self._sandboxes.prepare(SPEC, min(sessions, 4))

    async def _open(self) -> Sandbox:
        await self._sandboxes.check(SPEC)
        return (await self._sandboxes.acquire(SPEC))[0]

    @tool
    async def calculator(self, expression: str) -> str:
        """One operation on two numbers; then the story goes on.

        Args:
            expression: such as 12*7
        """
        answer = super().calculator(expression)
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        sandbox = await asyncio.shield(self._opening)
        await sandbox.write("answer", answer)
        return (await sandbox.exec(["cat", "answer"])).text().strip()

    async def close(self) -> None:
        """Release the sandbox."""
        opening, self._opening = self._opening, None
        await self._sandboxes.release_opened(opening)


class Handler(BaseHTTPRequestHandler):
    """Scores a session by its length: from 1 for two messages on downwards."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """The score."""
        messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
        body = json.dumps({"score": min(1.0, 2 / max(1, len(messages)))}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


def serve(port: int, pid_file: Path) -> None:
    """Answer on a port of this machine until the process is killed."""
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    pid_file.write_text(str(os.getpid()))
    server.serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
