"""A browser of one session: what an agent's calls do, and the one without graphics, which needs nothing installed."""

from __future__ import annotations

import http.client
from abc import ABC, abstractmethod
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit

from agentrl.envs.builtin.web.page import Element, Page, parse
from agentrl.envs.builtin.web.server import COOKIE, READ_SECONDS, sites
from agentrl.errors import EnvError, InfraError, ToolError
from agentrl.tools.schema import show_value
from agentrl.tools.threads import run_in_thread
from agentrl.types import Part

MAX_URL = 500
MAX_TYPED = 200
"""Characters that a field takes."""
MAX_VISITED = 50
"""Pages that one can go back."""
MAX_REDIRECTS = 5
SAFE = "/%?=&+,;:@!$'()*~"
"""Characters of an address that are sent as they are."""


class Browser(ABC):
    """One session's browser.

    Args:
        host: the site's name; nothing else can be opened.
        session: the number of the session, for the cookie.

    Attributes:
        page: the page that is open.
    """

    def __init__(self, host: str, session: str) -> None:
        self.host, self.session = host, session
        self.page = Page()
        self._visited: list[str] = []

    async def open(self, url: str) -> None:
        """Open an address of the site.

        Raises:
            ToolError: it is none.
        """
        await self._load(self._address(url))
        self._note()

    async def back(self) -> None:
        """Load the page before this one again.

        Raises:
            ToolError: there is none.
        """
        if len(self._visited) < 2:
            raise ToolError("there is no page before this one")
        del self._visited[-1]
        await self._load(self._visited[-1])

    async def click(self, number: int) -> bool:
        """Click a link or button, or turn a checkbox or radio button on; whether that has led to another page.

        Raises:
            ToolError: there is no such number, or it can't be clicked.
        """
        element = self._element(number)
        if element.kind in ("text", "choice"):
            raise ToolError(f"{element} is not clicked but typed into")
        if element.kind in ("checkbox", "radio"):
            await self._switch(element)
            return False
        await self._follow(element)
        self._note()
        return True

    async def type(self, number: int, text: str, enter: bool) -> bool:
        """Put text into a field in place of what is there, or choose; whether Enter has led to another page.

        Raises:
            ToolError: there is no such number, it takes no text, or has no such choice.
        """
        element = self._element(number)
        if element.kind not in ("text", "choice"):
            raise ToolError(f"{element} takes no text")
        if len(text) > MAX_TYPED:
            raise ToolError(f"the text has {len(text)} characters; a field takes {MAX_TYPED}")
        words = " ".join(text.split())
        if element.kind == "choice":
            same = [option for option in element.options if option.casefold() == words.casefold()]
            if not same:
                raise ToolError(f"{show_value(words)} can't be chosen; there are {', '.join(element.options)}")
            words = same[0]
        if enter and element.form is None:
            raise ToolError(f"{element} is in no form that Enter could send")
        await self._fill(element, words)
        if enter:
            await self._enter(element)
            self._note()
        return enter

    def state(self) -> dict[str, Any]:
        """The page, and the text typed there and not sent."""
        fields = [[element.value, element.on] for element in self.page.elements]
        return {"visited": list(self._visited), "fields": fields}

    async def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned, with the site restored."""
        self._visited = list(state["visited"])
        await self._load(self._visited[-1])
        for element, (value, on) in zip(self.page.elements, state["fields"], strict=True):
            element.value, element.on = value, on

    async def picture(self) -> Part:
        """The page as it looks, with its elements' numbers.

        Raises:
            EnvError: this browser draws nothing.
        """
        raise EnvError(f"{type(self).__name__} draws no pictures")

    async def close(self) -> None:
        return

    @abstractmethod
    async def _load(self, url: str) -> None:
        """Load an address and set `page`."""

    @abstractmethod
    async def _follow(self, element: Element) -> None:
        """Click a link or a button and set `page`."""

    @abstractmethod
    async def _enter(self, element: Element) -> None:
        """Press Enter in a field of a form and set `page`."""

    @abstractmethod
    async def _fill(self, element: Element, text: str) -> None:
        """Set what is in a field."""

    @abstractmethod
    async def _switch(self, element: Element) -> None:
        """Turn a checkbox the other way, or a radio button on."""

    def _element(self, number: int) -> Element:
        elements = self.page.elements
        if not 1 <= number <= len(elements):
            raise ToolError(f"number = {show_value(number)}: the page has the numbers 1 to {len(elements)}")
        return elements[number - 1]

    def _address(self, url: str) -> str:
        """An address of the site, encoded.

        Raises:
            ToolError: it is none.
        """
        if len(url) > MAX_URL:
            raise ToolError(f"the address has {len(url)} characters; at most {MAX_URL} are allowed")
        try:
            parts = urlsplit(urljoin(self.page.url or f"http://{self.host}/", url.strip()))
        except ValueError as error:
            raise ToolError(f"{show_value(url)} is no address: {error}") from None
        if (parts.scheme, parts.netloc) != ("http", self.host):
            raise ToolError(f"{show_value(url)} can't be opened; only addresses of http://{self.host}/ can")
        path = quote(parts.path or "/", safe=SAFE.replace("?", ""), errors="replace")
        query = quote(parts.query, safe=SAFE, errors="replace")
        return f"http://{self.host}{path}" + (f"?{query}" if query else "")

    def _form_of(self, element: Element) -> int:
        if element.form is None:
            raise ToolError(f"{element} belongs to no form")
        return element.form

    def _note(self) -> None:
        self._visited = [*self._visited, self.page.url][-MAX_VISITED:]


class TextBrowser(Browser):
    """Reads HTML and sends forms, and runs no scripts."""

    async def _load(self, url: str) -> None:
        await self._request("GET", url)

    async def _follow(self, element: Element) -> None:
        if element.kind == "link":
            await self._load(self._address(element.href))
        else:
            await self._send(self._form_of(element), element)

    async def _enter(self, element: Element) -> None:
        await self._send(self._form_of(element), None)

    async def _fill(self, element: Element, text: str) -> None:
        element.value = text

    async def _switch(self, element: Element) -> None:
        if element.kind == "checkbox":
            element.on = not element.on
            return
        for other in self.page.elements:
            if (other.kind, other.name, other.form) == ("radio", element.name, element.form):
                other.on = other is element

    async def _send(self, form: int, button: Element | None) -> None:
        sent = urlencode(self.page.sent(button, form), errors="replace")
        target = self._address(self.page.forms[form].path)
        if self.page.forms[form].method == "post":
            await self._request("POST", target, sent)
        else:
            await self._load(f"{target.partition('?')[0]}?{sent}")

    async def _request(self, method: str, url: str, body: str | None = None) -> None:
        for _ in range(MAX_REDIRECTS):
            location, html = await run_in_thread(self._exchange, method, url, body)
            if location is None:
                self.page = parse(url, html)
                return
            method, body, url = "GET", None, self._address(location)
        raise InfraError(f"{self.host} redirects more than {MAX_REDIRECTS} times")

    def _exchange(self, method: str, url: str, body: str | None) -> tuple[str | None, str]:
        """One request: where it leads instead, and the document."""
        headers = {"Host": self.host, "Cookie": f"{COOKIE}={self.session}"}
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        connection = http.client.HTTPConnection("127.0.0.1", sites().port, timeout=READ_SECONDS)
        try:
            connection.request(method, url.removeprefix(f"http://{self.host}"), body, headers)
            answer = connection.getresponse()
            return answer.getheader("Location"), answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise InfraError(f"the server of {self.host} did not answer: {type(error).__name__}: {error}") from error
        finally:
            connection.close()
