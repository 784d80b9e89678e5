"""A browser of one session in a real Chromium, without a window, by playwright.

One Chromium serves the process, and each session has a context of its own: cookies, storage and cache. Names of sites
lead to the server's port, and every other name to nothing, so what a page asks for stays on this machine. Playwright
belongs to an event loop; since episodes have loops that come and go, it is on the one that sandboxes are on.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib.util
import os
import shutil
from collections.abc import Coroutine
from typing import Any, TypeVar

from agentrl.envs.builtin.web.browser import Browser
from agentrl.envs.builtin.web.page import Element, parse
from agentrl.envs.builtin.web.picture import WIDTH, number_places
from agentrl.envs.builtin.web.server import COOKIE, sites
from agentrl.errors import ConfigError, InfraError, StateUnsupported
from agentrl.tools.sandbox.runner.loop import blocking, on_loop
from agentrl.tools.threads import in_forked_child
from agentrl.types import Part

T = TypeVar("T")
SECONDS = 60.0
"""For one step in the browser: a busy machine takes long to begin."""
STOP_SECONDS = 10.0
NUMBERED = "a[href], button, select, textarea, input:not([type=hidden])"
"""The elements that `page` numbers, in the same order."""
FIELDS = "found => found.map(one => [one.value ?? '', one.checked ?? false])"
PLACES = (
    "found => found.map(one => { const box = one.getBoundingClientRect(); "
    "return [box.x + window.scrollX, box.y + window.scrollY] })"
)
MISSING = (
    "env.browser = chromium needs {what}: install the package playwright (the extra `browser`) and Debian's chromium, "
    "or let `playwright install chromium` download one; env.browser = text needs neither"
)

_started: asyncio.Task[Any] | None = None


@in_forked_child
def _forget() -> None:
    """It belongs to the parent."""
    global _started
    _started = None


def require() -> None:
    """Check that there is a playwright.

    Raises:
        ConfigError: there is none; the message says what to do.
    """
    if importlib.util.find_spec("playwright") is None:
        raise ConfigError(MISSING.format(what="playwright"))


class ChromiumBrowser(Browser):
    """The same pages and the same calls, in Chromium."""

    _page: Any = None

    def state(self) -> dict[str, Any]:
        """Refuse: what a page holds is in a process.

        Raises:
            StateUnsupported: always.
        """
        raise StateUnsupported(
            "an episode in Chromium can't be saved, since its page is in a process; browser=text can"
        )

    async def begin(self) -> None:
        """Open the session's page, with nothing on it."""
        await self._do(self._open_page())

    async def close(self) -> None:
        page, self._page = self._page, None
        if page is not None:
            await self._do(page.context.close())

    async def picture(self) -> Part:
        await self._do(self._page.set_viewport_size({"width": WIDTH, "height": WIDTH}))
        png = await self._do(self._page.screenshot(full_page=True))
        places = await self._do(self._page.locator(NUMBERED).evaluate_all(PLACES))
        return number_places(png, [(left, upper) for left, upper in places])

    async def _load(self, url: str) -> None:
        if self._page is None:
            await self.begin()
        await self._do(self._page.goto(url))
        await self._read()

    async def _follow(self, element: Element) -> None:
        await self._do(self._leaving(self._find(element).click()))
        await self._read()

    async def _enter(self, element: Element) -> None:
        await self._do(self._leaving(self._find(element).press("Enter")))
        await self._read()

    async def _fill(self, element: Element, text: str) -> None:
        found = self._find(element)
        await self._do(found.select_option(label=text) if element.kind == "choice" else found.fill(text))
        await self._read_fields()

    async def _switch(self, element: Element) -> None:
        await self._do(self._find(element).click())
        await self._read_fields()

    def _find(self, element: Element) -> Any:
        return self._page.locator(NUMBERED).nth(element.number - 1)

    async def _leaving(self, doing: Coroutine[Any, Any, Any]) -> None:
        async with self._page.expect_navigation():
            await doing

    async def _read(self) -> None:
        html = await self._do(self._page.content())
        self.page = parse(self._page.url, html)
        await self._read_fields()

    async def _read_fields(self) -> None:
        values = await self._do(self._page.locator(NUMBERED).evaluate_all(FIELDS))
        for element, (value, on) in zip(self.page.elements, values, strict=True):
            if element.kind in ("text", "choice"):
                element.value = value
            element.on = on

    async def _open_page(self) -> None:
        context = await (await _chromium()).new_context()
        try:
            await context.add_cookies([{"name": COOKIE, "value": self.session, "url": f"http://{self.host}/"}])
            page = await context.new_page()
        except BaseException:  # the caller's deadline, too: nobody else knows of the context
            await context.close()
            raise
        page.set_default_timeout(1000 * SECONDS)
        self._page = page

    async def _do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something of playwright's on its loop.

        Raises:
            InfraError: it failed or took too long.
        """
        from playwright.async_api import Error

        try:
            return await asyncio.wait_for(on_loop(work), SECONDS)
        except (Error, TimeoutError) as error:
            raise InfraError(f"Chromium failed on {self.host}: {error}") from error


async def _chromium() -> Any:
    """The process's Chromium, which the first call on this loop starts, and the first one after it has ended.

    Raises:
        ConfigError: there is none, or it does not start.
    """
    global _started
    if _started is None or not _usable(_started):
        _started = asyncio.create_task(_start())
    return await asyncio.shield(_started)


def _usable(starting: asyncio.Task[Any]) -> bool:
    """Return whether a Chromium is starting, or runs."""
    if not starting.done():
        return True
    failed = starting.cancelled() or starting.exception() is not None
    return not failed and bool(starting.result().is_connected())


async def _start() -> Any:
    from playwright.async_api import Error, async_playwright

    playwright = await async_playwright().start()
    options = [
        f"--host-resolver-rules=MAP *.test 127.0.0.1:{sites().port}, MAP * ~NOTFOUND",
        "--disable-dev-shm-usage",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),  # Chromium's own does not start as root
    ]
    try:
        started = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=options, timeout=1000 * SECONDS
        )
    except Error as error:
        await playwright.stop()
        raise ConfigError(f"{MISSING.format(what='a Chromium that starts')} ({_first_line(error)})") from None
    except BaseException:
        await playwright.stop()
        raise
    atexit.register(_stop, playwright, started)
    return started


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def _stop(playwright: Any, started: Any) -> None:
    """Close it at the interpreter's exit, unless this is a child of its process."""
    if _started is None:
        return
    with contextlib.suppress(Exception):
        blocking(_close(playwright, started), STOP_SECONDS)


async def _close(playwright: Any, started: Any) -> None:
    await started.close()
    await playwright.stop()
