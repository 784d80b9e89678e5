"""What tests of rollouts share: time that passes as they say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest


@pytest.fixture
async def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Has so many seconds pass by the event loop's clock: a deadline comes when the test wants it, on any machine."""
    loop, passed = asyncio.get_running_loop(), 0.0
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + passed)

    def pass_seconds(seconds: float) -> None:
        nonlocal passed
        passed += seconds

    return pass_seconds
