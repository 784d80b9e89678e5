"""The shop's catalogue, a function of a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "backpack": (("canvas", "nylon", "leather"), ("a laptop sleeve", "a rain cover", "a hip belt")),
    "jacket": (("cotton", "wool", "nylon"), ("a hood", "inner pockets", "reflective stripes")),
    "boots": (("leather", "suede", "rubber"), ("a warm lining", "steel toes", "a side zip")),
    "lamp": (("brass", "glass", "steel"), ("a dimmer", "a long cable", "a clamp")),
    "kettle": (("steel", "glass", "copper"), ("a thermometer", "a whistle", "a wooden handle")),
    "blanket": (("wool", "cotton", "linen"), ("fringes", "a pattern", "a carrying strap")),
    "notebook": (("paper", "leather", "cork"), ("dotted pages", "an elastic band", "a ribbon")),
    "tent": (("nylon", "canvas", "polyester"), ("two entrances", "a porch", "a repair kit")),
    "mug": (("steel", "glass", "clay"), ("a lid", "a wide handle", "a scale")),
    "chair": (("oak", "steel", "bamboo"), ("armrests", "wheels", "a cushion")),
}
"""Each kind of thing: its materials, and what it may have."""
OF_EACH = 12
"""Items of a kind."""
BRANDS = ("Alder", "Birch", "Cedar", "Dorne", "Elmo", "Fenwick", "Gale", "Harrow")
SERIES = ("Trail", "Home", "Classic", "Light", "City", "Nord", "Plus", "Duo")
COLOURS = ("black", "blue", "green", "grey", "red", "white", "yellow")
SIZES = ("small", "medium", "large")


@dataclass(frozen=True)
class Item:
    """One thing that is sold.

    Attributes:
        cents: its price.
        options: what has to be chosen, by the option's name.
    """

    number: int
    kind: str
    name: str
    material: str
    features: tuple[str, ...]
    cents: int
    options: Mapping[str, tuple[str, ...]]

    @property
    def words(self) -> str:
        """The words that a search looks at."""
        return f"{self.name} {self.kind} {self.material} {' '.join(self.features)}".casefold()


@lru_cache(maxsize=16)
def catalogue(seed: int) -> tuple[Item, ...]:
    """All items of a seed; an item's number is its place."""
    rng = random.Random(f"web_shop/{seed}/catalogue")
    found: list[Item] = []
    for kind, (materials, features) in KINDS.items():
        names = rng.sample([f"{brand} {series} {kind}" for brand in BRANDS for series in SERIES], OF_EACH)
        for name in names:
            options = {"colour": tuple(sorted(rng.sample(COLOURS, 3)))}
            if rng.random() < 0.5:
                options["size"] = SIZES
            features_of = tuple(sorted(rng.sample(features, rng.randint(1, 2))))
            cents = rng.randint(900, 9900)
            found.append(Item(len(found), kind, name, rng.choice(materials), features_of, cents, options))
    return tuple(found)


def search(items: tuple[Item, ...], query: str) -> list[Item]:
    """The items that have every word of a query, the cheapest first; where none has, those with most of them."""
    words = query.casefold().split()
    hits = {item.number: sum(map(item.words.__contains__, words)) for item in items}
    best = max(hits.values(), default=0)
    least = len(words) if best == len(words) else 1
    return sorted(
        (item for item in items if hits[item.number] >= least), key=lambda item: (-hits[item.number], item.cents)
    )


def money(cents: int) -> str:
    """A price."""
    return f"${cents // 100}.{cents % 100:02}"
