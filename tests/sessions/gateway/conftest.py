"""A running gateway for each test, over whatever engine it wants."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentrl.sessions.gateway.gateway import Gateway, persistent_secret
from agentrl.sessions.gateway.http.app import create_app
from agentrl.sessions.gateway.http.server import gateway_of, running
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.types import Session
from tests.sessions.gateway.fakes import ScriptedEngine, renderer


@dataclass
class Served:
    """A gateway on a port."""

    url: str
    gateway: Gateway
    engine: Any
    store: Store

    async def open(self, **body: Any) -> dict[str, str]:
        async with httpx.AsyncClient(timeout=60) as client:
            answer = await client.post(f"{self.url}/sessions", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()

    def session(self, id_: str) -> Session:
        """The open session, checked: its invariants, and that the store holds the same nodes."""
        session = self.gateway.entries[id_].state.session
        tree.check(session)
        return session


Serve = Callable[..., "contextlib.AbstractAsyncContextManager[Served]"]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    @contextlib.asynccontextmanager
    async def started(engine: Any = None, format: Any = None, **options: Any) -> AsyncIterator[Served]:
        engine = engine or ScriptedEngine()
        limits = options.pop("limits", Limits())
        given = options.pop("store", None)
        with contextlib.nullcontext(given) if given else Store(tmp_path / "sessions.db") as store:
            secret = persistent_secret(tmp_path / "sessions.db")
            app = create_app(engine, format or renderer(), store, limits=limits, secret=secret, **options)
            async with running(app) as url:
                yield Served(url, gateway_of(app), engine, store)

    return started
