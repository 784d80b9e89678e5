"""Questions about a shop's data in three levels, with the calls that answer them."""

from __future__ import annotations

import random
from typing import Any

from agentrl.envs.data_analysis.shop import CATEGORIES, REASONS, REGIONS, Shop
from agentrl.envs.data_analysis.sql import cell, select

LEVELS = (1, 2, 3)
PAGE = 40
"""Lines of the file that one reading shows."""
JOINED = "FROM sales s JOIN products p ON p.id = s.product_id JOIN customers c ON c.id = s.customer_id"
Question = tuple[str, list[list[Any]], str | None]
"""The words, the calls that answer them (a tool and its arguments), and the answer; None where there is none."""


def question(rng: random.Random, level: int, shop: Shop) -> dict[str, Any]:
    """A question, the calls that answer it, and the answer; drawn again where the answer is empty or no single one."""
    while True:
        words, calls, answer = (_one_table, _joined, _combined)[level - 1](rng, shop)
        if answer is not None:
            return {"question": words, "calls": [["schema", {}], *calls], "answer": answer}


def _one_table(rng: random.Random, shop: Shop) -> Question:
    category, region, month = rng.choice(list(CATEGORIES)), rng.choice(REGIONS), rng.randint(1, 12)
    quantity = rng.randint(2, 8)
    return _asked(
        shop,
        *rng.choice(
            (
                (
                    f"How many sales were there in month {month} of 2025?",
                    f"SELECT count(*) FROM sales WHERE substr(day, 6, 2) = '{month:02}'",
                ),
                (
                    f"How many customers are in the region {region}?",
                    f"SELECT count(*) FROM customers WHERE region = '{region}'",
                ),
                (
                    f"What is the name of the most expensive product of the category {category}?",
                    f"SELECT name FROM products WHERE category = '{category}' ORDER BY price DESC LIMIT 1",
                ),
                (
                    f"How many units were sold in all, in sales of more than {quantity} units?",
                    f"SELECT sum(quantity) FROM sales WHERE quantity > {quantity}",
                ),
            )
        ),
    )


def _joined(rng: random.Random, shop: Shop) -> Question:
    category, region = rng.choice(list(CATEGORIES)), rng.choice(REGIONS)
    return _asked(
        shop,
        *rng.choice(
            (
                (
                    f"What was the revenue (quantity times price) of the category {category} in the region {region}?",
                    f"SELECT round(sum(quantity * price), 2) {JOINED} "
                    f"WHERE category = '{category}' AND region = '{region}'",
                ),
                (
                    f"Which customer spent the most on products of the category {category}?",
                    f"SELECT c.name {JOINED} WHERE category = '{category}' "
                    "GROUP BY c.id ORDER BY sum(quantity * price) DESC, c.name LIMIT 1",
                ),
                (
                    f"How many different customers of the region {region} bought something of the category {category}?",
                    f"SELECT count(DISTINCT c.id) {JOINED} WHERE category = '{category}' AND region = '{region}'",
                ),
            )
        ),
    )


def _combined(rng: random.Random, shop: Shop) -> Question:
    reason, category = rng.choice(REASONS), rng.choice(list(CATEGORIES))
    sales = ", ".join(str(sale) for sale, why in shop.returned() if why == reason) or "0"
    pages = [["read_file", {"start": start}] for start in range(1, len(shop.lines) + 1, PAGE)]
    words, calls, answer = _asked(
        shop,
        *rng.choice(
            (
                (
                    f"What revenue (quantity times price) was lost to sales that came back because they were {reason}?",
                    f"SELECT round(sum(quantity * price), 2) {JOINED} WHERE s.id IN ({sales})",
                ),
                (
                    f"How many units of the category {category} came back because they were {reason}?",
                    f"SELECT sum(quantity) {JOINED} WHERE category = '{category}' AND s.id IN ({sales})",
                ),
                (
                    f"From which region did the most sales come back because they were {reason}? If several are equal, "
                    "give the first by name.",
                    f"SELECT region {JOINED} WHERE s.id IN ({sales}) "
                    "GROUP BY region ORDER BY count(*) DESC, region LIMIT 1",
                ),
            )
        ),
    )
    return words, [*pages, *calls], answer


def _asked(shop: Shop, words: str, query: str) -> Question:
    _, rows = select(shop.database, query)
    value = rows[0][0] if rows else None
    return words, [["sql", {"query": query}]], None if value is None else cell(value)
