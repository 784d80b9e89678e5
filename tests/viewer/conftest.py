"""A viewer on a port of its own, and a real browser."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.listener import address, listening, served
from agentrl.sessions.store import Store
from agentrl.viewer.app import create_app
from agentrl.viewer.notes import Change, Notes
from agentrl.viewer.replay_process import Replays
from tests.conftest import need
from tests.viewer.recorded import HOSTILE, replayed, write_run

SECONDS = 60
"""A busy machine takes long to begin."""


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of other learning rates; a session of the first has a note, tags and a replay."""
    folder = tmp_path_factory.mktemp("runs")
    first = write_run(folder / "first")
    Notes(first).put("train-5.0-0", Change(text=HOSTILE, tags=("odd", HOSTILE[:40])))
    with Store(first / "sessions.db", read_only=True) as recorded, Store(first / "replays.db") as replays:
        session = recorded.load("train-5.0-0")
        replays.save(replayed(session, "@2.1", session.nodes[:3], HOSTILE, reward=0.5))
    write_run(folder / "below" / "slow", lr=4e-4, hostile=False)
    return folder


@contextlib.contextmanager
def viewing(folder: Path, **options: Any) -> Iterator[str]:
    """The address of a viewer of that folder."""
    begun, ended, found = threading.Event(), asyncio.Event(), []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        with contextlib.closing(listening("127.0.0.1", 0)) as listener:
            async with served(create_app(folder, **options), listener, Limits()):
                found.append(address(listener, "127.0.0.1"))
                begun.set()
                await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    try:
        assert begun.wait(SECONDS)
        yield found[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(SECONDS)
        loop.close()


@pytest.fixture(scope="session")
def url(runs: Path) -> Iterator[str]:
    """A viewer of both runs, whose page may change things."""
    with contextlib.closing(Replays()) as replays, viewing(runs, replays=replays) as found:
        yield found


@pytest.fixture
async def page() -> AsyncIterator[Any]:
    """A page of Debian's Chromium, without a window; what it reports as an error fails the test."""
    chromium = shutil.which("chromium")
    need(chromium is not None, "Chromium (Debian's package chromium)")
    need(importlib.util.find_spec("playwright") is not None, "playwright")
    from playwright.async_api import async_playwright

    async with async_playwright() as started:
        options = ["--no-sandbox", "--disable-dev-shm-usage"]
        opened = await started.chromium.launch(executable_path=chromium, args=options, timeout=1000 * SECONDS)
        context = await opened.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
        context.set_default_timeout(1000 * SECONDS)
        page = await context.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("dialog", lambda dialog: errors.append(dialog.message))
        yield page
        await opened.close()
        assert errors == []
