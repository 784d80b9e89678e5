"""Things to be bought, in three levels, and the credit of an order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, permutations
from typing import Any

from agentrl.envs.builtin.math_tools import is_held_out
from agentrl.envs.builtin.web.shop.catalogue import Item, catalogue, money
from agentrl.envs.builtin.web.shop.site import DELIVERIES, Line, Shop
from agentrl.types import Task

ITEM_SHARE, OPTIONS_SHARE, QUANTITY_SHARE = 0.5, 0.3, 0.2
"""Of a line's credit; exactly 1 together, in this order."""
OVER = 0.5
"""The share of its worth that an order above the budget, or with the wrong delivery, keeps."""
Want = dict[str, Any]
"""An item's name, or kind, material and feature; the options; the quantity. All plain JSON."""


def tasks(seed: int, level: int | None, split: str) -> Iterator[Task]:
    """Tasks without end; whether one is for `eval` is decided by its words."""
    items = catalogue(seed)
    for index in count():
        rng = random.Random(f"web_shop/{seed}/{split}/{level}/{index}")
        of = level or rng.choice(list(LEVELS))
        while True:
            data = LEVELS[of](rng, items)
            if is_held_out(data["words"]) == (split == "eval"):
                break
        yield Task(id=f"shop-{seed}-{split}-{level or 'all'}-{index}", data={"level": of, **data})


def _by_name(rng: random.Random, items: Sequence[Item]) -> dict[str, Any]:
    """Level 1: some of an item by its name, in a colour."""
    item = rng.choice(items)
    want: Want = {"name": item.name, "options": _options(rng, item), "quantity": rng.randint(1, 9)}
    return _task([want], None, items)


def _by_features(rng: random.Random, items: Sequence[Item]) -> dict[str, Any]:
    """Level 2: one item by what it is like, within a budget that few of those fit."""
    want = _describe(rng, rng.choice(items), 1)
    return _task([want], "standard", items, rng.randint(0, 400))


def _several(rng: random.Random, items: Sequence[Item]) -> dict[str, Any]:
    """Level 3: two or three kinds of things, several of each, with a delivery and one budget."""
    chosen = {item.kind: item for item in rng.sample(list(items), 3)}
    wants = [_describe(rng, item, rng.randint(1, 4)) for item in chosen.values()]
    return _task(wants, rng.choice(list(DELIVERIES)), items, rng.randint(0, 400))


LEVELS: dict[int, Callable[[random.Random, Sequence[Item]], dict[str, Any]]] = {
    1: _by_name,
    2: _by_features,
    3: _several,
}


def _describe(rng: random.Random, item: Item, quantity: int) -> Want:
    wanted = {"kind": item.kind, "material": item.material, "feature": rng.choice(item.features)}
    return {**wanted, "options": _options(rng, item), "quantity": quantity}


def _options(rng: random.Random, item: Item) -> dict[str, str]:
    return {name: rng.choice(words) for name, words in item.options.items()}


def _task(wants: list[Want], delivery: str | None, items: Sequence[Item], slack: int = 0) -> dict[str, Any]:
    """The task with its words; the budget is what the cheapest order costs, and some cents."""
    least = sum(items[line.item].cents * line.quantity for line in cheapest(wants, items))
    budget = None if delivery is None else least + DELIVERIES[delivery] + slack
    things = "; ".join(_words(want) for want in wants)
    words = f"Buy in the shop: {things}."
    if delivery is not None and budget is not None:
        words += f" Have it delivered by {delivery} delivery, for at most {money(budget)} with delivery."
    return {"words": f"{words} Place the order.", "wants": wants, "delivery": delivery, "budget": budget}


def _words(want: Want) -> str:
    what = want.get("name") or f"{want['kind']} of {want['material']} with {want['feature']}"
    options = ", ".join(f"{name} {value}" for name, value in want["options"].items())
    return f"{want['quantity']} x {what}, {options}"


def is_wanted(item: Item, want: Want) -> bool:
    """Return whether an item is what is wanted, and can be had with the options."""
    if "name" in want:
        described = item.name == want["name"]
    else:
        described = item.kind == want["kind"] and item.material == want["material"] and want["feature"] in item.features
    return described and all(value in item.options.get(name, ()) for name, value in want["options"].items())


def cheapest(wants: Sequence[Want], items: Sequence[Item]) -> list[Line]:
    """The cheapest lines that are all that is wanted; options that nobody asked for are the first."""
    lines = []
    for want in wants:
        item = min((item for item in items if is_wanted(item, want)), key=lambda item: item.cents)
        options = {name: want["options"].get(name, words[0]) for name, words in item.options.items()}
        lines.append(Line(item.number, options, want["quantity"]))
    return lines


def credit(shop: Shop, task: Mapping[str, Any]) -> float:
    """The share of the task that an order has right, from 0 to 1; 0 where none was placed.

    The mean over what is wanted, and over what else was bought, of a line's credit: half for the item, 0.3 for the
    options, 0.2 for the quantity. Above the budget, or with another delivery, it is halved.
    """
    if not shop.ended:
        return 0.0
    wants: list[Want] = task["wants"]
    lines: list[Line | None] = [*shop.basket, *[None] * (len(wants) - len(shop.basket))]
    best = max(
        sum(_fit(shop.items, line, want) for line, want in zip(order, wants, strict=True))
        for order in permutations(lines, len(wants))
    )
    budget, delivery = task["budget"], task["delivery"]
    kept = (budget is None or shop.total <= budget) and delivery in (None, shop.delivery)
    return float(best / len(lines) * (1.0 if kept else OVER))


def _fit(items: Sequence[Item], line: Line | None, want: Want) -> float:
    if line is None:
        return 0.0
    item = items[line.item]
    if not is_wanted(item, {**want, "options": {}}):
        return 0.0
    asked = want["options"]
    options: float = sum(line.options.get(name) == value for name, value in asked.items()) / len(asked)
    return ITEM_SHARE + OPTIONS_SHARE * options + QUANTITY_SHARE * int(line.quantity == want["quantity"])
