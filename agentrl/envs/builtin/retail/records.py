"""The records of a store's database as one episode sees them.

Episodes share the records of the database and copy those that they change, so an episode costs what it changes and not
the size of the database.
"""

from __future__ import annotations

import copy
import functools
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agentrl.envs.builtin.retail.data import Database, Record
from agentrl.errors import ToolError
from agentrl.tools.schema import shown

MAX_FIELD = 200
"""Characters of a line of an address."""


class RetailRecords:
    """The database as one episode sees it.

    Attributes:
        changed: copies of the users and orders that the episode has changed, by kind and id.
        transferred: whether the customer was transferred to a human agent.
        found: the ids of the customers who were looked up.
    """

    def __init__(self, database: Database | None = None) -> None:
        self.begin(database or Database())

    def begin(
        self,
        database: Database,
        changed: Mapping[str, Mapping[str, Record]] | None = None,
        transferred: bool = False,
        found: Iterable[str] = (),
    ) -> None:
        """Begin an episode, or continue one with what it had changed."""
        self.database, self.transferred, self.found = database, transferred, set(found)
        self.changed: dict[str, dict[str, Record]] = {"users": {}, "orders": {}}
        for kind, records in (changed or {}).items():
            self.changed[kind] = {key: dict(record) for key, record in records.items()}

    def same_as(self, other: RetailRecords) -> bool:
        """Return whether both have the same records; they must be of the same database."""
        return all(
            self.get(kind, key) == other.get(kind, key)
            for kind in self.changed
            for key in {*self.changed[kind], *other.changed[kind]}
        )

    def get(self, kind: str, key: str) -> Record:
        """The record as it is now; callers do not change it."""
        found = self.changed.get(kind, {}).get(key) or getattr(self.database, kind).get(key)
        if found is None:
            raise ToolError(f"there is no {kind.removesuffix('s')} {shown(key)}")
        return found

    def change(self, kind: str, key: str) -> Record:
        """The episode's own copy of a record."""
        if key not in self.changed[kind]:
            self.changed[kind][key] = copy.deepcopy(self.get(kind, key))
        return self.changed[kind][key]

    def set(self, kind: str, key: str, **fields: Any) -> Record:
        """Change fields of a record."""
        record = self.change(kind, key)
        record.update(fields)
        return record

    def find_user(self, matches: Callable[[Record], bool]) -> str:
        """The id of the first user that matches."""
        changed = self.changed.get("users", {})
        for user_id, user in self.database.users.items():
            if matches(changed.get(user_id) or user):
                self.found.add(user_id)
                return user_id
        raise ToolError("no such customer")

    def order(self, order_id: str, status: str, verb: str) -> Record:
        """An order of that status; `verb` says what else can't be done with it."""
        order = self.get("orders", order_id)
        if order["status"] != status:
            raise ToolError(f"the order is {order['status']}; only a {status} one can be {verb}")
        return order

    def pending(self, order_id: str) -> Record:
        """A pending order, also one whose items were modified."""
        order = self.get("orders", order_id)
        if "pending" not in order["status"]:
            raise ToolError(f"the order is {order['status']}; only a pending one can be modified")
        return order

    def replacements(self, order: Record, item_ids: Sequence[str], new_item_ids: Sequence[str]) -> list[Record]:
        """The available variants that replace an order's items."""
        check_items(order, item_ids)
        if len(item_ids) != len(new_item_ids):
            raise ToolError(f"{len(item_ids)} items and {len(new_item_ids)} new ones: the numbers must be equal")
        product_of = {item["item_id"]: item["product_id"] for item in order["items"]}
        found = []
        for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
            variant = self.get("products", product_of[item_id])["variants"].get(new_item_id)
            if variant is None or not variant["available"]:
                raise ToolError(f"{shown(new_item_id)} is not available as a variant of the same product")
            found.append(variant)
        return found

    def method(self, order: Record, payment_method_id: str) -> Record:
        """A payment method of the order's customer."""
        method = self.get("users", order["user_id"])["payment_methods"].get(payment_method_id)
        if method is None:
            raise ToolError(f"the customer has no payment method {shown(payment_method_id)}")
        return method  # type: ignore[no-any-return]

    def check_balance(self, order: Record, payment_method_id: str, amount: float) -> None:
        """Refuse what a gift card does not cover."""
        method = self.method(order, payment_method_id)
        if method["source"] == "gift_card" and method["balance"] < amount:
            raise ToolError("the balance of the gift card is too low")

    def pay(self, order: Record, payment_method_id: str, amount: float) -> None:
        """Charge a gift card at once (or refund it, where the amount is negative); others are charged elsewhere."""
        if self.method(order, payment_method_id)["source"] == "gift_card":
            method = self.change("users", order["user_id"])["payment_methods"][payment_method_id]
            method["balance"] = round(method["balance"] - amount, 2)


def check_items(order: Record, item_ids: Sequence[str]) -> None:
    """Refuse items that the order does not have as often."""
    has = Counter(item["item_id"] for item in order["items"])
    for item_id, number in Counter(item_ids).items():
        if number > has[item_id]:
            raise ToolError(f"the order has {has[item_id]} of item {shown(item_id)}, not {number}")


def difference_of(order: Record, item_ids: Sequence[str], variants: Sequence[Record]) -> float:
    """The price of the new items less that of the old ones."""
    price = {item["item_id"]: item["price"] for item in order["items"]}
    return round(sum((float(new["price"] - price[old]) for old, new in zip(item_ids, variants, strict=True)), 0.0), 2)


def address_of(address1: str, address2: str, city: str, state: str, country: str, zip: str) -> dict[str, str]:
    """An address as records have it, its lines bounded."""
    address = {
        "address1": address1,
        "address2": address2,
        "city": city,
        "state": state,
        "country": country,
        "zip": zip,
    }
    for name, value in address.items():
        if len(value) > MAX_FIELD:
            raise ToolError(f"{name} has {len(value)} characters; at most {MAX_FIELD} are allowed")
    return address


def folded(text: str) -> str:
    """Text without case and accents, for comparing names."""
    return _folded(text[:MAX_FIELD])


@functools.lru_cache(maxsize=4096)  # a look-up compares with all customers
def _folded(text: str) -> str:
    text = text.casefold()
    if text.isascii():  # as nearly all of them are
        return text.strip()
    parts = unicodedata.normalize("NFKD", text)
    return "".join(part for part in parts if not unicodedata.combining(part)).strip()
