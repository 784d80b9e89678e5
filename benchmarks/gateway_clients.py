"""The clients of `benchmarks.gateway_load`: sessions that keep a history, as an agent would, and the echo's."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from agentrl.models import resolve
from agentrl.types import Message
from benchmarks.gateway import RESULT, Client, Wire
from benchmarks.gateway_servers import MASTER_KEY, MODEL, Server, renderer_of

TURNS = 8
"""Turns of a session, so that a history of 1k tokens stays one."""
SIDE_BY_SIDE = 16
"""Sessions that speak at once, where waits are measured."""


@dataclass
class Size:
    """How much is measured."""

    rounds: int = 5
    memory_turns: int = 100_000
    profiled: int = 480


@dataclass
class ClientSession:
    """A session and its connection; `bodies` are the requests that it sent."""

    wire: Wire
    client: Client = field(default_factory=Client)
    id: str = ""
    key: str = ""
    bodies: list[bytes] = field(default_factory=list)

    @classmethod
    async def open(cls, url: str, size: int) -> ClientSession:
        """A session whose history has `size` tokens, all of them stored."""
        session = cls(await Wire.open(url))
        access = orjson.loads(await session.wire.post("/sessions", b"{}"))
        session.id, session.key = access["id"], access["api_key"]
        if not access["base_url"].startswith(f"{url}/"):  # it is one of several workers'
            session.wire.writer.close()
            session.wire = await Wire.open(access["base_url"].partition("/sessions")[0])
        session.client.messages += [{"role": "user", "content": RESULT.text}] * (size // filler_tokens())
        await session.turn()
        session.bodies.clear()
        return session

    @property
    def path(self) -> str:
        """Where its requests go."""
        return f"/sessions/{self.id}/v1/chat/completions"

    async def turn(self) -> float:
        """One more turn; its seconds."""
        body = self.client.body()
        self.bodies.append(body)
        began = time.perf_counter()
        answer = await self.wire.post(self.path, body, self.key)
        ended = time.perf_counter()
        self.client.hear(answer)
        return ended - began

    async def close(self) -> None:
        """Close the session, with a reward, and the connection."""
        await self.wire.post(f"/sessions/{self.id}/close", b'{"reward": 1.0}', self.key)
        self.wire.writer.close()


@functools.cache
def filler_tokens() -> int:
    """Tokens of a message of the history."""
    return len(renderer_of(resolve(MODEL)).render([Message(role="user", content=RESULT.text)])[0])


async def echoed(server: Server, sessions: Sequence[ClientSession], together: bool) -> list[float]:
    """The seconds that each of these sessions' bodies takes at the echo, or at another server."""
    times: list[float] = []

    async def one(session: ClientSession) -> None:
        wire = await Wire.open(server.url)
        for body in session.bodies:
            began = time.perf_counter()
            answer = await wire.post(server.path or session.path, body, MASTER_KEY)
            assert server.path is None or b"tool_calls" in answer, answer[:300]
            times.append(time.perf_counter() - began)
        wire.writer.close()

    if together:
        await asyncio.gather(*map(one, sessions))
    else:
        for session in sessions:
            await one(session)
    return times


async def speak(session: ClientSession, times: list[float]) -> None:
    """A session's turns; adds their seconds."""
    times.extend([await session.turn() for _ in range(TURNS)])
