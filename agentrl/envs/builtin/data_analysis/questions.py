"""Questions about a shop's data in three levels, with the calls that answer them."""

from __future__ import annotations

import random
from typing import Any

from agentrl.envs.builtin.data_analysis.shop import CATEGORIES, REASONS, REGIONS, ShopDatabase
from agentrl.envs.builtin.data_analysis.sql import cell, select

LEVELS = (1, 2, 3)
PAGE = 40
"""Lines of the file that one reading shows."""
JOINED = "FROM sales s JOIN products p ON p.id = s.product_id JOIN customers c ON c.id = s.customer_id"
Question = tuple[str, list[list[Any]], str | None]
"""The words, the calls that answer them (a tool and its arguments), and the answer; None where there is none."""


def question(rng: random.Random, level: int, shop: ShopDatabase) -> dict[str, Any]:
    """A question, the calls that answer it, and the answer; drawn again where the answer is empty or no single one."""
    while True:
        words, calls, answer = (_one_table, _joined, _combined)[level - 1](rng, shop)
        if answer is not None:
            return {"question": words, "calls": [["schema", {}], *calls], "answer": answer}


def _one_table(rng: random.Random, shop: ShopDatabase) -> Question:
    category, region, (when, within) = rng.choice(list(CATEGORIES)), rng.choice(REGIONS), _period(rng)
    quantity, price = rng.randint(2, 8), rng.randint(10, 90)
    return _asked(
        shop,
        *rng.choice(
            (
                (
                    f"{when}, how many sales were there?",
                    f"SELECT count(*) FROM sales WHERE {within}",
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
                    f"How many products cost more than {price}?",
                    f"SELECT count(*) FROM products WHERE price > {price}",
                ),
                (
                    f"{when}, how many units were sold in all, in sales of more than {quantity} units?",
                    f"SELECT sum(quantity) FROM sales WHERE quantity > {quantity} AND {within}",
                ),
            )
        ),
    )


def _joined(rng: random.Random, shop: ShopDatabase) -> Question:
    category, region, (when, within) = rng.choice(list(CATEGORIES)), rng.choice(REGIONS), _period(rng)
    return _asked(
        shop,
        *rng.choice(
            (
                (
                    f"{when}, what was the revenue (quantity times price) of the category {category} in the region "
                    f"{region}?",
                    f"SELECT round(sum(quantity * price), 2) {JOINED} "
                    f"WHERE category = '{category}' AND region = '{region}' AND {within}",
                ),
                (
                    f"{when}, which customer spent the most on products of the category {category}?",
                    f"SELECT c.name {JOINED} WHERE category = '{category}' AND {within} "
                    "GROUP BY c.id ORDER BY sum(quantity * price) DESC, c.name LIMIT 1",
                ),
                (
                    f"{when}, how many different customers of the region {region} bought something of the category "
                    f"{category}?",
                    f"SELECT count(DISTINCT c.id) {JOINED} "
                    f"WHERE category = '{category}' AND region = '{region}' AND {within}",
                ),
            )
        ),
    )


def _combined(rng: random.Random, shop: ShopDatabase) -> Question:
    reason, category, (when, within) = rng.choice(REASONS), rng.choice(list(CATEGORIES)), _period(rng)
    sales = ", ".join(str(sale) for sale, why in shop.returned() if why == reason) or "0"
    pages = [["read_file", {"start": start}] for start in range(1, len(shop.lines) + 1, PAGE)]
    words, calls, answer = _asked(
        shop,
        *rng.choice(
            (
                (
                    f"Of the sales {when.lower()}, what revenue (quantity times price) was lost to those that came "
                    f"back because they were {reason}?",
                    f"SELECT round(sum(quantity * price), 2) {JOINED} WHERE s.id IN ({sales}) AND {within}",
                ),
                (
                    f"Of the sales {when.lower()}, how many units of the category {category} came back because they "
                    f"were {reason}?",
                    f"SELECT sum(quantity) {JOINED} WHERE category = '{category}' AND s.id IN ({sales}) AND {within}",
                ),
                (
                    f"Of the sales {when.lower()}, from which region did the most come back because they were "
                    f"{reason}? If several are equal, give the first by name.",
                    f"SELECT region {JOINED} WHERE s.id IN ({sales}) AND {within} "
                    "GROUP BY region ORDER BY count(*) DESC, region LIMIT 1",
                ),
            )
        ),
    )
    return words, [*pages, *calls], answer


def _period(rng: random.Random) -> tuple[str, str]:
    """Some months of the year in words, and the condition on a sale's day; without it few questions would differ."""
    first, last = sorted(rng.sample(range(1, 13), 2))
    return (
        f"From month {first} to month {last} of 2025",
        f"substr(day, 6, 2) BETWEEN '{first:02}' AND '{last:02}'",
    )


def _asked(shop: ShopDatabase, words: str, query: str) -> Question:
    _, rows = select(shop.database, query)
    value = rows[0][0] if rows else None
    return words, [["sql", {"query": query}]], None if value is None else cell(value)
