"""A store and its tasks, made from a seed, in the layout of the files that `data` reads.

Level 1 is one request with the order's number. In level 2 the customer names what they bought and which other variant
they want, and the agent has to find the rest. Level 3 is two requests, with a question whose answer has to be said, or
with a wish that the policy forbids. One customer in five belongs to `eval`, so no order is in both splits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from itertools import count
from typing import Any

from agentrl.envs.builtin.retail.data import Database, Record, World
from agentrl.types import Task

LEVELS = (1, 2, 3)
USERS = 600
STATES = ("pending",) * 5 + ("processed",)
"""Of orders under way. A processed one can't be cancelled: at most a fifth of the tasks of any level change nothing."""
EVAL_EVERY = 5
POLICY = """\
# Policy
Help customers to cancel or change pending orders, to return or exchange delivered ones, and to change addresses. You
also answer questions about their profile, their orders and our products.

- First find the customer's user id, by email, or by name and zip code, also where they tell it themselves.
- You serve one customer in a conversation and never touch what is another customer's.
- Before you change anything, say what you are going to do and let the customer confirm it with yes.
- Say nothing that neither the customer nor a tool has told you. Refuse what this policy does not allow.
- Transfer to a human agent only what you cannot handle, with the tool and then the message
  "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON."

Orders are pending, processed, delivered or cancelled. Only pending ones can be cancelled or changed, and only delivered
ones returned or exchanged. The reason of a cancellation is "no longer needed" or "ordered by mistake".
Items are replaced by available variants of the same product, all of an order in one call: there is no second one.
A difference in price is paid by, or refunded to, a payment method of the customer; a gift card must cover it.
The refund of a return goes to the order's own payment method or to a gift card of the customer."""

FIRST = (
    *("Ann", "Ben", "Cara", "Dan", "Eva", "Finn", "Gia", "Hugo", "Ida", "Jon", "Kim", "Leo"),
    *("Mia", "Nils", "Olga", "Paul", "Rosa", "Sam", "Tara", "Uwe", "Vera", "Will", "Yara", "Zoe"),
)
LAST = (
    *("Adler", "Berg", "Costa", "Diaz", "Evans", "Ford", "Gruber", "Hill", "Ito", "Jansen", "Kaya", "Lind", "Mori"),
    *("Novak", "Okoye", "Perez", "Quinn", "Rossi", "Silva", "Tran", "Usman", "Varga", "Weber", "Yilmaz", "Zhang"),
)
STREETS = ("Oak Street", "Mill Lane", "Park Avenue", "Hill Road", "Lake Drive")
CITIES = (("Denver", "CO", "802"), ("Austin", "TX", "787"), ("Boston", "MA", "021"), ("Seattle", "WA", "981"))
PRODUCTS: dict[str, dict[str, tuple[str, ...]]] = {
    "Backpack": {"color": ("black", "green", "grey"), "size": ("small", "large")},
    "Bookshelf": {"material": ("wood", "metal"), "height": ("4 ft", "6 ft")},
    "Camera": {"resolution": ("20 MP", "24 MP", "30 MP"), "zoom": ("3x", "5x")},
    "Coffee Maker": {"color": ("black", "white"), "capacity": ("2 cups", "4 cups", "8 cups")},
    "Desk Lamp": {"color": ("black", "silver"), "power source": ("battery", "USB", "AC adapter")},
    "Headphones": {"type": ("in-ear", "over-ear"), "connection": ("wired", "wireless")},
    "Jacket": {"color": ("navy", "red"), "size": ("S", "M", "L")},
    "Keyboard": {"switch": ("clicky", "linear"), "backlight": ("none", "white", "RGB")},
    "Kettle": {"material": ("glass", "steel"), "capacity": ("1 l", "1.5 l")},
    "Running Shoes": {"color": ("blue", "white"), "size": ("8", "9", "10")},
    "Smart Watch": {"band": ("leather", "silicone"), "color": ("gold", "black")},
    "Water Bottle": {"color": ("red", "blue"), "capacity": ("500 ml", "750 ml", "1 l")},
}
SOURCES = {"paypal": "PayPal", "credit_card": "credit card", "gift_card": "gift card"}


@lru_cache(maxsize=4)
def made_world(seed: int) -> World:
    """The store of a seed."""
    rng = random.Random(f"retail/{seed}")
    products = {each["product_id"]: each for each in (_product(rng, name) for name in PRODUCTS)}
    users: dict[str, Record] = {}
    orders: dict[str, Record] = {}
    for number in range(USERS):
        user = _user(rng, number)
        users[user["user_id"]] = user
        bought = rng.sample(sorted(products), rng.randint(3, 6))
        half = rng.randint(1, len(bought) - 1)
        for chosen, status in ((bought[:half], rng.choice(STATES)), (bought[half:], "delivered")):
            order = _order(rng, user, [products[each] for each in chosen], status)
            orders[order["order_id"]] = order
            user["orders"].append(order["order_id"])
    return World(Database(products, users, orders), POLICY)


def made_tasks(split: str, level: int | None, seed: int) -> Iterator[Task]:
    """Tasks without end."""
    database = made_world(seed).database
    users = [
        user for number, user in enumerate(database.users.values()) if (number % EVAL_EVERY == 0) == (split == "eval")
    ]
    for index in count():
        rng = random.Random(f"retail/{seed}/{split}/{level}/{index}")
        chosen = level or rng.choice(LEVELS)
        yield Task(
            id=f"retail-{seed}-{split}-{level or 'all'}-{index}",
            data=_Maker(rng, database).task(rng.choice(users), chosen),
        )


Request = tuple[str, list[dict[str, Any]], list[str]]
"""The customer's message, the calls that fulfil it, and what the agent has to say."""


class _Maker:
    """Makes requests of one customer."""

    def __init__(self, rng: random.Random, database: Database) -> None:
        self.rng, self.database = rng, database

    def task(self, user: Record, level: int) -> dict[str, Any]:
        first, second = (self.database.orders[each] for each in user["orders"])
        orders = [_call("get_order_details", order_id=each) for each in user["orders"]]
        lookups = orders[:1] if level == 1 else [_call("get_user_details", user_id=user["user_id"]), *orders]
        if level == 1:
            requests = [self._first(user, first, named=True)]
        elif level == 2:
            requests = [self.rng.choice((self._exchange, self._return))(user, second, False)]
        else:
            later = self.rng.choice((self._exchange, self._return, self._forbidden))
            requests = [self._first(user, first, named=False), later(user, second, False)]
            if self.rng.random() < 0.5:
                requests.append(self._question())
        knows_email = self.rng.random() < 0.5
        name = f"{user['name']['first_name']} {user['name']['last_name']}"
        known = f"Your email is {user['email']}." if knows_email else f"Your zip code is {user['address']['zip']}."
        identify = {"email": user["email"]} if knows_email else {**user["name"], "zip": user["address"]["zip"]}
        kind = "email" if knows_email else "name_zip"
        return {
            "level": level,
            "scenario": {
                "reason": " ".join(words for words, _, _ in requests),
                "known": f"You are {name}. {known}",
                "unknown": "" if knows_email else "You don't remember your email.",
                "instructions": "",
            },
            "actions": [
                _call(f"find_user_id_by_{kind}", **identify),
                *lookups,
                *(call for _, calls, _ in requests for call in calls),
            ],
            "communicate": [words for _, _, said in requests for words in said],
            "refuse": any(not calls for _, calls, _ in requests),
            "assertions": [],
        }

    def _first(self, user: Record, order: Record, named: bool) -> Request:
        """A request about the order that is not delivered: what is possible, or something forbidden."""
        which = f"order {order['order_id']}" if named else f"the order with the {order['items'][0]['name']}"
        if order["status"] != "pending":
            return f"You want to cancel {which} because it is no longer needed.", [], []
        if self.rng.random() < 0.5:
            reason, words = self.rng.choice(
                (("no longer needed", "it is no longer needed"), ("ordered by mistake", "you ordered it by mistake"))
            )
            call = _call("cancel_pending_order", order_id=order["order_id"], reason=reason)
            return f"You want to cancel {which} because {words}.", [call], []
        address = _address(self.rng)
        where = ", ".join(address[key] for key in ("address1", "address2", "city", "state", "country", "zip"))
        call = _call("modify_pending_order_address", order_id=order["order_id"], **address)
        return f"You want {which} to be sent to another address: {where}.", [call], []

    def _return(self, user: Record, order: Record, named: bool) -> Request:
        item, method = self.rng.choice(order["items"]), order["payment_history"][0]["payment_method_id"]
        call = _call(
            "return_delivered_order_items",
            order_id=order["order_id"],
            item_ids=[item["item_id"]],
            payment_method_id=method,
        )
        return (
            f"You want to return the {item['name']}. The refund should go to the original payment method.",
            [call],
            [],
        )

    def _exchange(self, user: Record, order: Record, named: bool) -> Request:
        item, method = (
            self.rng.choice(order["items"]),
            user["payment_methods"][order["payment_history"][0]["payment_method_id"]],
        )
        others = [
            each
            for each in self.database.products[item["product_id"]]["variants"].values()
            if each["available"] and each["item_id"] != item["item_id"]
        ]
        if not others:
            return self._return(user, order, named)
        new = self.rng.choice(others)
        wanted = " and ".join(f"{key} {value}" for key, value in new["options"].items())
        call = _call(
            "exchange_delivered_order_items",
            order_id=order["order_id"],
            item_ids=[item["item_id"]],
            new_item_ids=[new["item_id"]],
            payment_method_id=method["id"],
        )
        variants = _call("get_product_details", product_id=item["product_id"])
        paid = f"Use the {SOURCES[method['source']]} of the order for the price difference."
        return f"You want to exchange the {item['name']} for one with {wanted}. {paid}", [variants, call], []

    def _forbidden(self, user: Record, order: Record, named: bool) -> Request:
        return f"You also want to cancel the order with the {order['items'][0]['name']}, which was delivered.", [], []

    def _question(self) -> Request:
        product = self.rng.choice(list(self.database.products.values()))
        offered = [each for each in product["variants"].values() if each["available"]]
        calls = [_call("list_all_product_types"), _call("get_product_details", product_id=product["product_id"])]
        # a price, not how many there are: that is right by chance
        word, price = self.rng.choice((("cheapest", min), ("most expensive", max)))
        words = f"You also want to know what the {word} available {product['name']} costs."
        return words, calls, [f"{price(each['price'] for each in offered):.2f}"]


def _call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def _digits(rng: random.Random, number: int) -> str:
    return "".join(rng.choices("0123456789", k=number))


def _product(rng: random.Random, name: str) -> Record:
    options, variants = PRODUCTS[name], dict[str, Record]()
    kinds: list[dict[str, str]] = [{}]
    for key, values in options.items():
        kinds = [{**kind, key: value} for kind in kinds for value in values]
    base = rng.uniform(20, 200)
    for number, kind in enumerate(kinds):
        item_id = _digits(rng, 10)
        price = round(base * rng.uniform(0.8, 1.2), 2)
        available = number < 2 or rng.random() < 0.8
        variants[item_id] = {"item_id": item_id, "options": kind, "available": available, "price": price}
    return {"name": name, "product_id": _digits(rng, 10), "variants": variants}


def _user(rng: random.Random, number: int) -> Record:
    first, last = FIRST[number % len(FIRST)], LAST[number // len(FIRST) % len(LAST)]
    user_id = f"{first}_{last}_{_digits(rng, 4)}".lower()
    methods: dict[str, Record] = {}
    for source in rng.sample(sorted(SOURCES), rng.randint(1, 2)):
        method: Record = {"source": source, "id": f"{source}_{_digits(rng, 7)}"}
        if source == "gift_card":
            method["balance"] = float(rng.randint(100, 300))
        elif source == "credit_card":
            method.update(brand=rng.choice(("visa", "mastercard")), last_four=_digits(rng, 4))
        methods[method["id"]] = method
    return {
        "user_id": user_id,
        "name": {"first_name": first, "last_name": last},
        "address": _address(rng),
        "email": f"{first}.{last}{_digits(rng, 4)}@example.com".lower(),
        "payment_methods": methods,
        "orders": [],
    }


def _address(rng: random.Random) -> dict[str, str]:
    city, state, prefix = rng.choice(CITIES)
    return {
        "address1": f"{rng.randint(1, 999)} {rng.choice(STREETS)}",
        "address2": f"Suite {rng.randint(1, 99)}",
        "city": city,
        "state": state,
        "country": "USA",
        "zip": f"{prefix}{_digits(rng, 2)}",
    }


def _order(rng: random.Random, user: Record, products: list[Record], status: str) -> Record:
    items = []
    for product in products:
        variant = rng.choice(list(product["variants"].values()))
        kept = {key: variant[key] for key in ("item_id", "price", "options")}
        items.append({"name": product["name"], "product_id": product["product_id"], **kept})
    paid = {
        "transaction_type": "payment",
        "amount": round(sum(item["price"] for item in items), 2),
        "payment_method_id": rng.choice(sorted(user["payment_methods"])),
    }
    sent = [{"tracking_id": [_digits(rng, 12)], "item_ids": [item["item_id"] for item in items]}]
    return {
        "order_id": f"#W{_digits(rng, 7)}",
        "user_id": user["user_id"],
        "address": user["address"],
        "items": items,
        "status": status,
        "fulfillments": [] if status == "pending" else sent,
        "payment_history": [paid],
    }
