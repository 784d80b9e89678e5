"""A chronicle of firms, towns and people, and questions whose answers lie in several places of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from agentrl.envs.builtin.document_search.document import Document

SIZES = {1: (60, 80), 2: (200, 260), 3: (600, 780)}
"""By level: sections, and firms; there are half as many towns, and as many people."""
DOCUMENTS = 10
"""Documents of a seed and level."""
FIRM = ("Works", "Mills", "Foundry", "Brewery", "Press", "Shipping", "Glass", "Timber", "Textiles", "Motors")
FIRST = ("Ada", "Bruno", "Clara", "Dario", "Edda", "Felix", "Gerda", "Henri", "Ilse", "Jakob", "Karla", "Ludo", "Marta")
SYLLABLES = ("al", "ber", "cor", "dun", "el", "far", "gor", "hal", "in", "jar", "kel", "lor", "mar", "nor", "os", "pel")
ENDS = ("ton", "field", "by", "ford", "ham", "wick", "dale", "mouth")
TRADES = ("baker", "carpenter", "chemist", "cooper", "draper", "lawyer", "mason", "nurse", "printer", "weaver")
FILLERS = (
    "The winter was long, and the roads were closed for some weeks.",
    "Of the other matters of that year little is written down.",
    "The council met twice and put the decision off.",
    "Prices rose in spring and fell again before the harvest.",
    "A new bridge was talked about, as it had been for a long time.",
    "The records of this month are damaged and can't be read in full.",
)


@dataclass(frozen=True)
class Relation:
    """A fact of the chronicle about one thing.

    Attributes:
        sentences: ways to say it, of a subject and a value.
        phrase: how a question speaks of the value.
    """

    sentences: tuple[str, ...]
    phrase: str


RELATIONS = {
    "office": Relation(
        ("{0} has its office in {1}.", "The office of {0} is a house in {1}."), "the town of the office of {0}"
    ),
    "run": Relation(("{0} is run by {1}.", "{1} took over and has run {0} since."), "the person who runs {0}"),
    "founded": Relation(("{0} was founded in {1}.", "In {1} {0} was founded."), "the year in which {0} was founded"),
    "staff": Relation(("{0} has a staff of {1}.", "The staff of {0} grew to {1}."), "the number of the staff of {0}"),
    "mayor": Relation(("The mayor of {0} is {1}.", "{1} was chosen as mayor of {0}."), "the mayor of {0}"),
    "river": Relation(("{0} lies on the river {1}.", "The river at {0} is the {1}."), "the river at {0}"),
    "born": Relation(("{0} was born in {1}.", "Born in {1}, {0} left it early."), "the town in which {0} was born"),
    "trade": Relation(("{0} learned the trade of a {1}.", "The trade of {0} was that of a {1}."), "the trade of {0}"),
}
OF_FIRM, OF_TOWN, OF_PERSON = ("office", "run", "founded", "staff"), ("mayor", "river"), ("born", "trade")
CHAINS = {
    1: tuple((name,) for name in RELATIONS),
    2: (
        ("office", "mayor"),
        ("office", "river"),
        ("run", "born"),
        ("run", "trade"),
        ("mayor", "trade"),
        ("born", "river"),
    ),
    3: (("office", "mayor", "trade"), ("run", "born", "river"), ("run", "born", "mayor"), ("mayor", "born", "river")),
}
"""By level: relations to follow one after another."""
COMPARED = 3
"""Firms that a question of level 3 compares."""


class Chronicle(Document):
    """A document, with what it tells.

    Attributes:
        values: by relation and subject.
        places: the section of each, by relation and subject.
    """

    def __init__(self, level: int, rng: random.Random) -> None:
        count, firms = SIZES[level]
        self.values = _world(rng, firms)
        self.places: dict[tuple[str, str], int] = {}
        sections: list[list[str]] = [[] for _ in range(count)]
        facts = list(self.values.items())
        rng.shuffle(facts)
        for place, ((relation, subject), value) in enumerate(facts):
            sentence = rng.choice(RELATIONS[relation].sentences).format(subject, value)
            sections[place % count].append(sentence[0].upper() + sentence[1:])
            self.places[relation, subject] = place % count + 1
        for sentences in sections:
            for filler in rng.sample(FILLERS, 3):
                sentences.insert(rng.randint(0, len(sentences)), filler)
        super().__init__([" ".join(sentences) for sentences in sections])


def _world(rng: random.Random, firms: int) -> dict[tuple[str, str], str]:
    towns = _names(
        rng, firms // 2, lambda: (rng.choice(SYLLABLES) + rng.choice(SYLLABLES)).capitalize() + rng.choice(ENDS)
    )
    people = _names(rng, firms, lambda: f"{rng.choice(FIRST)} {_surname(rng)}")
    rivers = _names(rng, firms // 4, lambda: (rng.choice(SYLLABLES) + rng.choice(SYLLABLES) + "a").capitalize())
    companies = _names(rng, firms, lambda: f"{_surname(rng)} {rng.choice(FIRM)}")
    found: dict[tuple[str, str], str] = {}
    for firm in companies:
        found["office", firm], found["run", firm] = rng.choice(towns), rng.choice(people)
        found["founded", firm], found["staff", firm] = str(rng.randint(1801, 1990)), str(rng.randint(11, 2999))
    for town in towns:
        found["mayor", town], found["river", town] = rng.choice(people), rng.choice(rivers)
    for person in people:
        found["born", person], found["trade", person] = rng.choice(towns), rng.choice(TRADES)
    return found


def _surname(rng: random.Random) -> str:
    return (rng.choice(SYLLABLES) + rng.choice(SYLLABLES) + rng.choice(("er", "sen", "mann", ""))).capitalize()


def _names(rng: random.Random, count: int, draw: Callable[[], str]) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < count:
        names[draw()] = None
    return list(names)


@lru_cache(maxsize=32)
def chronicle(seed: int, level: int, number: int) -> Chronicle:
    """The document of a number; made once."""
    return Chronicle(level, random.Random(f"document_search/{seed}/{level}/{number}"))


def question(rng: random.Random, level: int, document: Chronicle) -> dict[str, Any]:
    """A question, its answer, and the calls that find it; drawn again where a search does not show the place."""
    while True:
        compares = level == 3 and rng.random() < 0.5
        words, answer, facts = _comparison(rng, document) if compares else _chain(rng, level, document)
        searches = [(f"{subject} {relation}", document.places[relation, subject]) for relation, subject in facts]
        if all(place in document.search(query) for query, place in searches):
            calls = [call for query, place in searches for call in _calls(query, place)]
            notes = [f"{subject}, {relation}: {document.values[relation, subject]}" for relation, subject in facts]
            return {"question": words, "answer": answer, "calls": calls, "notes": notes}


def _calls(query: str, place: int) -> list[list[Any]]:
    return [["search", {"query": query}], ["read", {"section": place}]]


def _chain(rng: random.Random, level: int, document: Chronicle) -> tuple[str, str, list[tuple[str, str]]]:
    chain = rng.choice(CHAINS[level])
    subject = rng.choice([name for relation, name in document.values if relation == chain[0]])
    words, facts = subject, []
    for relation in chain:
        words = RELATIONS[relation].phrase.format(words)
        facts.append((relation, subject))
        subject = document.values[relation, subject]
    return f"Find {words}.", subject, facts


def _comparison(rng: random.Random, document: Chronicle) -> tuple[str, str, list[tuple[str, str]]]:
    values: Mapping[tuple[str, str], str] = document.values
    relation = rng.choice(("founded", "staff"))
    firms = rng.sample([name for which, name in values if which == relation], COMPARED)
    numbers = {firm: int(values[relation, firm]) for firm in firms}
    listed = f"{', '.join(firms[:-1])} and {firms[-1]}"
    facts = [(relation, firm) for firm in firms]
    if relation == "staff":
        return f"How many people are the staff of {listed} together?", str(sum(numbers.values())), facts
    if len(set(numbers.values())) < len(firms):  # no single oldest one
        return _comparison(rng, document)
    return f"Which of {listed} was founded first?", min(firms, key=numbers.__getitem__), facts
