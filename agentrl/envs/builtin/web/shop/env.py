"""`env=web_shop`: buy what is asked for in a shop on the web, with a browser.

The shop has a search, items with options, a basket and an order, which ends the episode. The reward is read from the
order, not from what the agent says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlencode

from agentrl.envs.base import reward
from agentrl.envs.builtin.web.env import WebEnv
from agentrl.envs.builtin.web.shop.site import Shop
from agentrl.envs.builtin.web.shop.tasks import cheapest, credit, tasks
from agentrl.types import Message, Session, Task


class WebShop(WebEnv[Shop]):
    """Buy the right items with the right options within a budget, in a web shop on localhost.

    Args:
        level: 1 to 3; without it they are mixed.
        seed: which shop and tasks there are.
        browser: `text`, which needs nothing, or `chromium`, a real one by playwright.
        view: a page's `text`, a `picture` of it with the same numbers (in Chromium), or `both`.
    """

    max_turns = 40

    def tasks(self, split: str = "train") -> Iterator[Task]:
        return tasks(self.seed, self.level, split)

    def new_site(self, task: Task) -> Shop:
        return Shop(self.seed)

    @reward
    def bought(self, session: Session) -> float:
        """The share of the task that the order has right; 1 is all, and 0 no order."""
        return credit(self.site, self._task.data)

    @reward(weight=0.0)
    def all_right(self, session: Session) -> float:
        """Return whether all of it is, logged."""
        return float(credit(self.site, self._task.data) == 1)

    def expert(self, messages: Sequence[Message]) -> str | Message:
        """Search for each thing as it is described, take the cheapest that fits, choose its options, and order."""
        wants = self._task["wants"]
        lines = zip(cheapest(wants, self.site.items), wants, strict=True)
        line, want = next(((line, want) for line, want in lines if line not in self.site.basket), (None, None))
        if line is None or want is None:
            return self._order()
        item = self.site.items[line.item]
        if self.browser.page.url.partition("?")[0].endswith(f"/item/{item.number}"):
            asked = {**line.options, "quantity": str(line.quantity)}
            return self._choose(asked) or self.click_on("Add to basket")
        query = want.get("name") or f"{want['kind']} {want['material']} {want['feature']}"
        if self.browser.page.url.endswith(urlencode({"q": query})) or "&page=" in self.browser.page.url:
            return self.click_on(item.name if self.seen(item.name) else "Next page")
        return self._type("q", query, enter=True)

    def _order(self) -> Message:
        if (place := self.seen("Place order")) is None:
            return self.call("open", url="/basket")
        delivery = self._task["delivery"] or "standard"
        for element in self.browser.page.elements:
            if element.kind == "radio" and element.value.startswith(delivery) and not element.on:
                return self.call("click", number=element.number)
        return self.call("click", number=place.number)

    def _choose(self, asked: dict[str, str]) -> Message | None:
        """The next field of the open page that is not yet as asked."""
        for name, value in asked.items():
            field = self.field(name)
            if field is not None and field.value != value:
                return self._type(name, value)
        return None

    def _type(self, name: str, text: str, **more: Any) -> Message:
        field = self.field(name)
        assert field is not None, name
        return self.call("type", number=field.number, text=text, **more)
