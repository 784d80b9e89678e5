"""The shop's pages: search, items with options, a basket, and an order that ends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlencode

from agentrl.envs.builtin.web import markup
from agentrl.envs.builtin.web.shop.catalogue import KINDS, Item, catalogue, money, search

PAGE = 8
"""Items on a page of results."""
MAX_LINES, MAX_QUANTITY = 8, 20
QUANTITY, FULL = f"the quantity, from 1 to {MAX_QUANTITY}", "the basket is full"
WRONG = (QUANTITY, FULL)
DELIVERIES = {"standard": 400, "express": 1200}
"""Ways of delivery and what they cost, in cents."""


@dataclass(frozen=True)
class Line:
    """A line of the basket: an item's number, the options that were chosen, and how many."""

    item: int
    options: dict[str, str]
    quantity: int


class Shop:
    """One customer's session.

    Attributes:
        basket: what was put into it.
        delivery: how the order is delivered; None until it is placed.
    """

    host = "shop.test"

    def __init__(self, seed: int) -> None:
        self.items = catalogue(seed)
        self.basket: list[Line] = []
        self.delivery: str | None = None

    @property
    def ended(self) -> bool:
        """Whether the order is placed."""
        return self.delivery is not None

    @property
    def total(self) -> int:
        """The basket's price with its delivery, in cents."""
        goods = sum(self.items[line.item].cents * line.quantity for line in self.basket)
        return goods + DELIVERIES.get(self.delivery or "", 0)

    def state(self) -> dict[str, Any]:
        """The basket and the order."""
        return {"basket": [asdict(line) for line in self.basket], "delivery": self.delivery}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.basket = [Line(**line) for line in state["basket"]]
        self.delivery = state["delivery"]

    # ------------------------------------------------------------------------------ pages

    def get(self, path: str, query: Mapping[str, str]) -> str | None:
        """A page of the shop."""
        item = self._item(path)
        if item is not None:
            return self._page(item.name, *self._about(item, query.get("wrong", "")))
        if path == "/":
            kinds = markup.items(markup.link(f"/search?q={kind}", kind) for kind in KINDS)
            return self._page("Shop", markup.text("What we sell:"), kinds)
        if path == "/search":
            return self._results(query.get("q", ""), query.get("page", "1"))
        if path == "/basket":
            return self._page("Basket", *self._basket())
        return None

    def _page(self, title: str, *body: str) -> str:
        head = (
            markup.form("/search", markup.field("q", "Search"), markup.button("Search"), method="get")
            + f"<p>{markup.link('/basket', f'Basket ({len(self.basket)})')}</p>"
        )
        return markup.document(title, head, *body)

    def _results(self, query: str, page: str) -> str:
        found = search(self.items, query)
        last = max(1, -(-len(found) // PAGE))
        number = min(max(int(page), 1), last) if page.isascii() and page.isdigit() and len(page) < 6 else 1
        shown = found[(number - 1) * PAGE : number * PAGE]
        lines = markup.items(
            f"{markup.link(f'/item/{item.number}', item.name)} {item.material}, {money(item.cents)}" for item in shown
        )
        more = (
            markup.link(f"/search?{urlencode({'q': query, 'page': number + 1})}", "Next page") if number < last else ""
        )
        words = f"Found for {query!r}: {len(found)}, page {number} of {last}"
        return self._page("Results", markup.text(words), lines, more)

    def _about(self, item: Item, wrong: str) -> list[str]:
        choices = [
            markup.choice(name, name.capitalize(), ["(choose)", *words], "(choose)")
            for name, words in item.options.items()
        ]
        return [
            markup.text(f"A {item.kind} of {item.material} with {' and '.join(item.features)}."),
            markup.text(f"Price: {money(item.cents)}"),
            *([markup.text(f"Please check: {wrong}.")] if wrong in (*item.options, *WRONG) else []),
            markup.form(
                f"/item/{item.number}",
                *choices,
                markup.field("quantity", "Quantity", "1"),
                markup.button("Add to basket"),
            ),
        ]

    def _basket(self) -> list[str]:
        if self.ended:
            return [markup.text(f"Thank you. Your order of {money(self.total)} is placed.")]
        if not self.basket:
            return [markup.text("It is empty.")]
        lines = [
            markup.form(
                "/remove",
                markup.hidden("line", str(place)),
                f"{markup.text(self._words(line))}{markup.button('Remove')}",
            )
            for place, line in enumerate(self.basket)
        ]
        ways = [f"{name} ({money(cents)})" for name, cents in DELIVERIES.items()]
        return [
            *lines,
            markup.text(f"Sum: {money(self.total)}"),
            markup.form("/order", markup.radio("delivery", "Delivery", ways, ways[0]), markup.button("Place order")),
        ]

    def _words(self, line: Line) -> str:
        item = self.items[line.item]
        return f"{line.quantity} x {item.name} ({', '.join(line.options.values())}), {money(item.cents)} each"

    # ------------------------------------------------------------------------------ what can be done

    def post(self, path: str, fields: Mapping[str, str]) -> str | None:
        """Add, remove, or order; nothing after the order."""
        item = self._item(path)
        if self.ended and (item is not None or path in ("/remove", "/order")):
            return "/basket"
        if item is not None:
            wrong = self._add(item, fields)
            return f"{path}?{urlencode({'wrong': wrong})}" if wrong else "/basket"
        if path == "/remove":
            line = fields.get("line", "")
            if line.isascii() and line.isdigit() and len(line) < 3 and int(line) < len(self.basket):
                del self.basket[int(line)]
            return "/basket"
        if path == "/order":
            way = fields.get("delivery", "").partition(" ")[0]
            if self.basket and way in DELIVERIES:
                self.delivery = way
            return "/basket"
        return None

    def _add(self, item: Item, fields: Mapping[str, str]) -> str:
        """Put an item into the basket; what is wrong with the fields, "" where nothing is."""
        chosen = {name: fields.get(name, "") for name in item.options}
        for name, words in item.options.items():
            if chosen[name] not in words:
                return name
        number = fields.get("quantity", "")
        if not (number.isascii() and number.isdigit() and len(number) < 4 and 1 <= int(number) <= MAX_QUANTITY):
            return QUANTITY
        if len(self.basket) == MAX_LINES:
            return FULL
        self.basket.append(Line(item.number, chosen, int(number)))
        return ""

    def _item(self, path: str) -> Item | None:
        number = path.removeprefix("/item/")
        if number == path or not (number.isascii() and number.isdigit()) or len(number) > 4:
            return None
        return self.items[int(number)] if int(number) < len(self.items) else None
