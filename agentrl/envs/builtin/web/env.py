"""The common part of environments on a site: the browser's tools, and a session of the site for each episode."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Literal, TypeVar

from agentrl.envs.base import Env
from agentrl.envs.builtin.web.browser import Browser, TextBrowser
from agentrl.envs.builtin.web.page import Element
from agentrl.envs.builtin.web.server import Site, sites
from agentrl.errors import ConfigError, EnvError
from agentrl.tools.tool import tool
from agentrl.types import Message, Part, Task

S = TypeVar("S", bound=Site)
BrowserName = Literal["text", "chromium"]
View = Literal["text", "picture", "both"]
HELP = (
    "You use a browser. Each link, button and field of a page has a number in brackets. Type into fields, and click "
    "links, buttons and boxes, by their numbers."
)


class WebEnv(Env, Generic[S]):
    """An episode on a site; a subclass says which site it is.

    Args:
        level: of the tasks; None mixes them.
        seed: which tasks there are.
        browser: `text` reads the site's HTML; `chromium` is a real one.
        view: how a page is shown: its text, a picture of it with the same numbers (by `chromium`), or both.
    """

    levels: ClassVar[tuple[int, ...]] = (1, 2, 3)

    def __init__(
        self, level: int | None = None, seed: int = 0, browser: BrowserName = "text", view: View = "text"
    ) -> None:
        if level is not None and level not in self.levels:
            raise ConfigError(f"env.level = {level}: allowed are {', '.join(map(str, self.levels))}")
        if view != "text" and browser != "chromium":
            raise ConfigError(f"env.view = {view} needs env.browser = chromium, since {browser} draws nothing")
        if browser == "chromium":
            from agentrl.envs.builtin.web.chromium import require

            require()
        self._view = view
        self.level, self.seed, self._browser_name = level, seed, browser
        self._task = Task(id="")
        self._site: S | None = None
        self._session = ""
        self._browser: Browser | None = None

    def new_site(self, task: Task) -> S:
        """The site as an episode finds it."""
        raise NotImplementedError(f"{type(self).__name__} has no new_site(task)")

    async def reset(self, task: Task, *, seed: int | None = None) -> list[Message]:
        await self._begin(task)
        await self.browser.open("/")
        words, seen = f"{task['words']}\n\n", await self._show_page()
        opening = words + seen if isinstance(seen, str) else [Part(type="text", text=words), *seen]
        return [Message(role="system", content=HELP), Message(role="user", content=opening)]

    @tool(model_errors=(ConnectionError, TimeoutError))
    async def open(self, url: str) -> str | list[Part]:
        """Open an address of this site.

        Args:
            url: such as /search?q=lamp.
        """
        await self.browser.open(url)
        return await self._show()

    @tool(model_errors=(ConnectionError, TimeoutError))
    async def click(self, number: int) -> str | list[Part]:
        """Click a link or a button, or turn a box on or off.

        Args:
            number: its number on the page.
        """
        moved = await self.browser.click(number)
        return await self._show(None if moved else number)

    @tool(model_errors=(ConnectionError, TimeoutError))
    async def type(self, number: int, text: str, enter: bool = False) -> str | list[Part]:
        """Put text into a field in place of what is there, or choose from a list by its words.

        Args:
            number: the field's number on the page.
            text: the text.
            enter: press Enter afterwards, which sends the form.
        """
        moved = await self.browser.type(number, text, enter)
        return await self._show(None if moved else number)

    @tool(model_errors=(ConnectionError, TimeoutError))
    async def back(self) -> str | list[Part]:
        """Go back to the page before this one."""
        await self.browser.back()
        return await self._show()

    async def state(self) -> dict[str, Any]:
        """The session of the site, and the browser's page; StateUnsupported in Chromium."""
        return {"browser": self.browser.state(), "site": self.site.state()}

    async def restore(self, task: Task, state: dict[str, Any]) -> None:
        await self._begin(task)
        self.site.restore(state["site"])
        await self.browser.restore(state["browser"])

    def brief(self, task: Task) -> Task:
        return Task(id=task.id, data={"words": task["words"]})

    async def close(self) -> None:
        try:
            if self._browser is not None:
                await self._browser.close()
        finally:
            sites().close(self._session)

    # ------------------------------------------------------------------------------ for subclasses

    @property
    def site(self) -> S:
        """The episode's session of the site.

        Raises:
            EnvError: no episode has begun.
        """
        if self._site is None:
            raise EnvError(f"{type(self).__name__} has begun no episode")
        return self._site

    @property
    def browser(self) -> Browser:
        """The episode's browser.

        Raises:
            EnvError: no episode has begun.
        """
        if self._browser is None:
            raise EnvError(f"{type(self).__name__} has begun no episode")
        return self._browser

    def seen(self, words: str) -> Element | None:
        """The link or button of the open page with these words; for experts."""
        return next((element for element in self.browser.page.elements if element.words == words), None)

    def field(self, name: str, value: str | None = None) -> Element | None:
        """The field of the open page with that name, and of radio buttons the one with that value; for experts."""
        for element in self.browser.page.elements:
            if element.name == name and element.kind != "button" and (value is None or element.value == value):
                return element
        return None

    def click_on(self, words: str) -> Message:
        """The call that clicks what has these words; for experts.

        Raises:
            EnvError: nothing on the page has.
        """
        element = self.seen(words)
        if element is None:
            raise EnvError(f"the expert finds no {words!r} on {self.browser.page.url}")
        return self.call("click", number=element.number)

    async def _begin(self, task: Task) -> None:
        await self.close()
        self._task, self._site = task, self.new_site(task)
        self._session = sites().open(self._site)
        if self._browser_name == "chromium":
            from agentrl.envs.builtin.web.chromium import ChromiumBrowser

            self._browser = ChromiumBrowser(self._site.host, self._session)
        else:
            self._browser = TextBrowser(self._site.host, self._session)

    async def _show(self, number: int | None = None) -> str | list[Part]:
        """The page; where a call has stayed on it, of its text the element of this number alone."""
        if number is None and self.site.ended:
            self.end()
        return await self._show_page(number)

    async def _show_page(self, number: int | None = None) -> str | list[Part]:
        page = self.browser.page
        text = page.text() if number is None else str(page.elements[number - 1])
        if self._view == "text":
            return text
        words = text if self._view == "both" else page.url.removeprefix(f"http://{self.site.host}")
        return [Part(type="text", text=words), await self.browser.picture()]
