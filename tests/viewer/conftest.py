"""A viewer on a port of its own, and a real browser."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentrl.sessions.gateway.http.listener import address, listening, serve_app
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.store.store import Store
from agentrl.viewer.app import create_app
from agentrl.viewer.notes import NoteChange, Notes
from agentrl.viewer.replay_process import Replays
from tests.conftest import need
from tests.suite.schedule import kept
from tests.viewer.recorded import HOSTILE, replayed, write_run

SECONDS = 60
"""A busy machine takes long to begin."""


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of other learning rates; a session of the first has a note, tags and a replay."""
    folder = tmp_path_factory.mktemp("runs")
    first = write_run(folder / "first")
    Notes(first).put("train-5.0-0", NoteChange(text=HOSTILE, tags=("odd", HOSTILE[:40])))
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
            async with serve_app(create_app(folder, **options), listener, Limits()):
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


@contextlib.asynccontextmanager
async def viewed(page: Any, folder: Path, **options: Any) -> AsyncIterator[str]:
    """The same for a page, which leaves before the viewer ends: what it still asked for would be refused."""
    with viewing(folder, **options) as found:
        yield found
        await page.goto("about:blank")


@pytest.fixture(scope="session")
def url(runs: Path) -> Iterator[str]:
    """A viewer of both runs, whose page may change things."""
    with contextlib.closing(Replays()) as replays, viewing(runs, replays=replays) as found:
        yield found


@contextlib.contextmanager
def browser(chromium: str) -> Iterator[str]:
    """The address at which one Chromium, without a window, takes commands; its tests have a profile each."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        quiet = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
        options = ["--headless", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", *quiet]
        command = [chromium, *options, "--remote-debugging-port=0", f"--user-data-dir={folder}"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield f"http://127.0.0.1:{_port(Path(folder) / 'DevToolsActivePort', process)}"
        finally:
            process.terminate()
            process.wait(SECONDS)


def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    end = time.monotonic() + SECONDS
    while not file.exists() or "\n" not in file.read_text():
        assert process.poll() is None, "Chromium has ended"
        assert time.monotonic() < end, "Chromium does not begin"
        time.sleep(0.05)
    return int(file.read_text().split()[0])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Any]:
    """Debian's Chromium, by one driver for the tests of a module: each driver starts a Node of its own."""
    command = shutil.which("chromium")
    need(command is not None, "Chromium (Debian's package chromium)")
    need(importlib.util.find_spec("playwright") is not None, "playwright")
    from playwright.async_api import async_playwright

    assert command is not None
    address = kept("chromium", lambda: browser(command))
    async with async_playwright() as started:
        connected = await started.chromium.connect_over_cdp(address, timeout=1000 * SECONDS)
        yield connected
        await connected.close()


@pytest_asyncio.fixture(loop_scope="module")
async def page(chromium: Any) -> AsyncIterator[Any]:
    """A page in a profile of its own; what it reports as an error fails the test, which shares its module's loop."""
    context = await chromium.new_context(
        viewport={"width": 1280, "height": 900},
        color_scheme="light",
        reduced_motion="reduce",  # a dot that pulses has the whole page drawn sixty times a second
    )
    context.set_default_timeout(1000 * SECONDS)
    page = await context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("dialog", lambda dialog: errors.append(dialog.message))
    yield page
    await context.close()
    assert errors == []
