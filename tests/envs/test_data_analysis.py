"""The data-analysis world: answers that other code confirms, and a database that an agent can only read."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from itertools import islice
from typing import Any

import pytest

from agentrl.envs.builtin.data_analysis.env import same
from agentrl.envs.builtin.data_analysis.questions import LEVELS
from agentrl.envs.builtin.data_analysis.shop import ShopDatabase, shop_of
from agentrl.envs.builtin.data_analysis.sql import MAX_QUERY, MAX_ROWS, run_query
from agentrl.envs.check import check_env
from agentrl.envs.episode import DEMONSTRATOR, play
from agentrl.envs.registry import make
from agentrl.errors import ConfigError, ToolError
from agentrl.types import Status

SHOP = shop_of(0, 0)


def tables(shop: ShopDatabase) -> dict[str, list[dict[str, Any]]]:
    """Every row, read without the environment's queries."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(shop.database)
        connection.row_factory = sqlite3.Row
        names = ("customers", "products", "sales")
        return {name: [dict(row) for row in connection.execute(f"SELECT * FROM {name}")] for name in names}


def counted(words: str, shop: ShopDatabase) -> Any:
    """The answer of some kinds of questions, in plain Python; None for the others."""
    data = tables(shop)
    product = {row["id"]: row for row in data["products"]}
    region = {row["id"]: row["region"] for row in data["customers"]}
    period = re.search(r"month (\d+) to month (\d+)", words)
    first, last = (int(period[1]), int(period[2])) if period else (1, 12)
    sales = [row for row in data["sales"] if first <= int(row["day"].split("-")[1]) <= last]
    if "how many sales were there" in words:
        return len(sales)
    if found := re.search(r"in all, in sales of more than (\d) units", words):
        return sum(row["quantity"] for row in sales if row["quantity"] > int(found[1]))
    if found := re.search(r"products cost more than (\d+)", words):
        return sum(row["price"] > int(found[1]) for row in data["products"])
    if found := re.search(r"revenue .* of the category (\w+) in the region (\w+)", words):
        chosen = [r for r in sales if region[r["customer_id"]] == found[2]]
        chosen = [r for r in chosen if product[r["product_id"]]["category"] == found[1]]
        return sum(r["quantity"] * product[r["product_id"]]["price"] for r in chosen)
    if found := re.search(r"lost to those that came back because they were ([\w ]+)\?", words):
        back = {int(line.split(",")[0]) for line in shop.lines[1:] if line.endswith(f",{found[1]}")}
        return sum(r["quantity"] * product[r["product_id"]]["price"] for r in sales if r["id"] in back)
    return None


@pytest.mark.slow
def test_answers_are_what_counting_in_python_gives():
    confirmed = 0
    for level in LEVELS:
        for task in islice(make("data_analysis", level=level).tasks(), 60):
            shop = shop_of(0, task["database"])
            value = counted(task["question"], shop)
            if value is not None:
                assert float(task["answer"]) == pytest.approx(value, abs=0.006), task
                confirmed += 1
    assert confirmed > 40


@pytest.mark.parametrize("level", LEVELS)
async def test_the_expert_answers_every_level_with_the_tools(level: int):
    for task in islice(make("data_analysis", level=level).tasks("eval"), 8):
        session = await play(make("data_analysis", level=level), task)
        assert (session.reward, session.status, session.counters["tool_errors"]) == (1, Status.COMPLETED, 0)
        last = [message.text for message in session.messages if message.role == "tool"][-1]
        assert task["answer"] in last


@pytest.mark.slow
def test_no_database_is_in_two_splits():
    env = make("data_analysis")
    used = {split: {task["database"] for task in islice(env.tasks(split), 300)} for split in env.splits}
    assert not used["train"] & used["eval"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("DROP TABLE sales", "only SELECT"),
        ("INSERT INTO sales VALUES (1, 1, 1, 1, '')", "only SELECT"),
        ("UPDATE products SET price = 0", "only SELECT"),
        ("ATTACH '/tmp/other.db' AS other", "only SELECT"),
        ("PRAGMA writable_schema = 1", "only SELECT"),
        ("VACUUM INTO '/tmp/copy.db'", "only SELECT"),
        ("CREATE TEMP TABLE t (x)", "only SELECT"),
        ("SELECT load_extension('x')", "only SELECT"),
        ("SELECT random()", "only SELECT"),
        ("SELECT datetime('now')", "only SELECT"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("SELEKT 1", "syntax error"),
        ("", "selects nothing"),
        ("SELECT '\0'", "null character"),
        ("SELECT '\ud800'", "surrogates not allowed"),
        ("SELECT " + "1" * MAX_QUERY, "at most"),
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n", "too long"),
        ("SELECT count(*) FROM sales a, sales b, sales c, sales d, sales e", "too long"),
        ("WITH RECURSIVE t(x) AS (SELECT 'aaaa' UNION ALL SELECT x || x FROM t) SELECT max(x) FROM t", "too big"),
        ("SELECT replace(hex(day), '3', hex(day || day || day)) FROM sales, sales, sales", "ambiguous"),
    ],
)
def test_a_query_that_changes_something_or_never_ends_is_refused(query: str, words: str):
    before = SHOP.database
    with pytest.raises(ToolError, match=words):
        run_query(before, query)
    assert SHOP.database == before


def test_a_result_has_bounded_rows_and_cells():
    rows = run_query(SHOP.database, "SELECT id, hex(hex(hex(day))) AS long FROM sales").splitlines()
    assert rows[0] == "id | long"
    assert len(rows) == MAX_ROWS + 2
    assert all(len(row) < 300 for row in rows)
    assert "more than 50 rows" in rows[-1]


@pytest.mark.parametrize(
    ("said", "answer", "right"),
    [
        ("Answer: 12", "12", True),
        ("It is so.\nAnswer: 1,234.50", "1234.5", True),
        ("1234.51", "1234.5", True),
        ("1234.52", "1234.5", False),
        ("Answer: $12.", "12", True),
        ("Answer: berg", "Berg", True),
        ("Answer: Berg and Ito", "Berg", False),
        ("12\nso", "12", False),
        ("", "12", False),
        ("9" * 500, "12", False),
        ("Answer: nan", "12", False),
    ],
)
def test_an_answer_is_a_number_to_a_cent_or_a_name_on_the_last_line(said: str, answer: str, right: bool):
    assert same(said, answer) is right


@pytest.mark.slow
def test_an_unknown_level_is_refused():
    with pytest.raises(ConfigError, match=r"env\.level = 9: allowed are 1, 2, 3"):
        make("data_analysis", level=9)


@pytest.mark.slow
def test_it_keeps_the_contract():
    assert check_env("data_analysis", scored=8) == []


@pytest.mark.slow
async def test_about_half_of_the_demonstrations_guess_and_the_same_ones_each_time():
    """With an expert's demonstrations alone reinforcement had nothing to choose."""
    tasks = list(islice(make("data_analysis", level=1).tasks("train"), 40))
    rewards = [[(await play(make("data_analysis"), task, DEMONSTRATOR)).reward for task in tasks] for _ in range(2)]
    assert rewards[0] == rewards[1]
    assert 10 <= sum(map(float, rewards[0])) <= 30
