"""A shop's data: a SQLite database as bytes, and a file."""

from __future__ import annotations

import csv
import io
import random
import sqlite3
from contextlib import closing
from functools import lru_cache

DATABASES = 40
"""Databases of a seed."""
FILE = "returns.csv"
SCHEMA = """\
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, region TEXT);
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT, category TEXT, price REAL);
CREATE TABLE sales (id INTEGER PRIMARY KEY, customer_id INTEGER, product_id INTEGER, quantity INTEGER, day TEXT);"""
REGIONS = ("North", "East", "South", "West")
CATEGORIES = {
    "garden": ("rake", "hose", "spade", "fence"),
    "kitchen": ("kettle", "pan", "knife", "toaster"),
    "office": ("stapler", "lamp", "chair", "shelf"),
}
NAMES = ("Adler", "Berg", "Costa", "Diaz", "Evans", "Ford", "Gruber", "Hill", "Ito", "Jansen", "Kaya", "Lind", "Mori")
REASONS = ("damaged", "late", "wrong size")


class ShopDatabase:
    """A database as bytes, and the lines of the file.

    Attributes:
        database: what `sqlite3.Connection.serialize` gives.
        lines: of `returns.csv`, the header first.
    """

    def __init__(self, rng: random.Random) -> None:
        products = [(name, kind) for kind, names in CATEGORIES.items() for name in names]
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.executescript(SCHEMA)
            connection.executemany(
                "INSERT INTO customers (name, region) VALUES (?, ?)",
                [(name, rng.choice(REGIONS)) for name in rng.sample(NAMES, len(NAMES))],
            )
            connection.executemany(
                "INSERT INTO products (name, category, price) VALUES (?, ?, ?)",
                [(name, kind, rng.randint(200, 9900) / 100) for name, kind in products],
            )
            sales = [
                (rng.randint(1, len(NAMES)), rng.randint(1, len(products)), rng.randint(1, 9), _day(rng))
                for _ in range(rng.randint(150, 300))
            ]
            connection.executemany(
                "INSERT INTO sales (customer_id, product_id, quantity, day) VALUES (?, ?, ?, ?)", sales
            )
            connection.commit()
            self.database = connection.serialize()
        returned = sorted(rng.sample(range(1, len(sales) + 1), rng.randint(20, 60)))
        self.lines = ["sale_id,reason", *(f"{sale},{rng.choice(REASONS)}" for sale in returned)]

    def returned(self) -> list[tuple[int, str]]:
        """The sales that came back, and why."""
        return [(int(row["sale_id"]), row["reason"]) for row in csv.DictReader(io.StringIO("\n".join(self.lines)))]


@lru_cache(maxsize=DATABASES)
def shop_of(seed: int, number: int) -> ShopDatabase:
    """The shop of a number; made once."""
    return ShopDatabase(random.Random(f"data_analysis/{seed}/database/{number}"))


def _day(rng: random.Random) -> str:
    return f"2025-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
