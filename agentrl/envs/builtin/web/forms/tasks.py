"""Forms to be filled in, in three levels, and the credit of a record."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

from agentrl.envs.builtin.math_tools import held_out
from agentrl.envs.builtin.web.forms.catalogue import FORMS, MONTHS, NO, SIMPLE, YES, Field, Form, value_of
from agentrl.types import Task

SIMPLE_FIELDS = 3


def tasks(seed: int, level: int | None, split: str) -> Iterator[Task]:
    """Tasks without end; whether one is for `eval` is decided by its words."""
    for index in count():
        rng = random.Random(f"web_forms/{seed}/{split}/{level}/{index}")
        of = level or rng.choice(list(LEVELS))
        while True:
            data = LEVELS[of](rng)
            if held_out(data["words"]) == (split == "eval"):
                break
        yield Task(id=f"form-{seed}-{split}-{level or 'all'}-{index}", data={"level": of, **data})


def forms_of(task: Mapping[str, Any]) -> list[Form]:
    """The forms that the site of a task has."""
    if task["level"] == 1:
        fields = {field.name: field for field in SIMPLE}
        return [Form("contact", "Contact", (tuple(fields[name] for name in task["fields"]),))]
    if task["level"] == 2:
        form = FORMS[task["form"]]
        every = tuple(field for page in form.pages for field in page if field.when is None)
        return [Form(form.name, form.title, (every,))]
    return list(FORMS.values())


def _simple(rng: random.Random) -> dict[str, Any]:
    """Level 1: three lines of text, as they are to be typed, in another order than on the page."""
    fields = rng.sample(SIMPLE, SIMPLE_FIELDS)
    values = {field.name: value_of(field, rng) for field in fields}
    told = rng.sample(fields, len(fields))
    words = "Fill in the form. " + "; ".join(f"{field.label}: {values[field.name]}" for field in told)
    return {"words": words, "form": "contact", "values": values, "fields": [field.name for field in fields]}


def _one_page(rng: random.Random) -> dict[str, Any]:
    """Level 2: all fields of a form on one page, with choices and boxes, and dates in words."""
    return _told(rng, rng.choice(list(FORMS)), level=2)


def _pages(rng: random.Random) -> dict[str, Any]:
    """Level 3: the right one of several forms, on three pages; what is asked on the last depends on those before."""
    return _told(rng, rng.choice(list(FORMS)), level=3)


LEVELS: dict[int, Callable[[random.Random], dict[str, Any]]] = {1: _simple, 2: _one_page, 3: _pages}


def _told(rng: random.Random, name: str, level: int) -> dict[str, Any]:
    (form,) = (form for form in forms_of({"level": level, "form": name}) if form.name == name)
    values: dict[str, str] = {}
    for number in range(1, len(form.pages) + 1):
        values |= {field.name: value_of(field, rng) for field in form.page(number, values)}
    told = [_sentence(field, values[field.name]) for field in form.fields(values)]
    words = f"Send this: {form.title.lower()}. " + " ".join(rng.sample(told, len(told)))
    return {"words": words, "form": name, "values": values}


def _sentence(field: Field, value: str) -> str:
    if field.kind == "checkbox":
        return f"{field.label}: {'yes' if value == YES else 'no'}."
    if field.name in ("start", "end"):
        year, month, day = value.split("-")
        return f"{field.label}: {int(day)} {MONTHS[int(month) - 1]} {year}."
    return f"{field.label}: {value}."


def credit(record: Mapping[str, Any] | None, task: Mapping[str, Any]) -> float:
    """The right share of a record, from 0 to 1; 0 where none was sent, or another form.

    It is the share of the fields that had to be changed that hold what was asked. A field that had to stay and
    did not counts as one more that is wrong.
    """
    if record is None or record["form"] != task["form"]:
        return 0.0
    wanted, given = task["values"], record["values"]
    initial = {field.name: field.initial for form in forms_of(task) for page in form.pages for field in page}
    right = sum(given.get(name) == value for name, value in wanted.items() if value != initial[name])
    wrong = sum(given.get(name, NO) != value for name, value in wanted.items() if value == initial[name])
    wrong += len(given.keys() - wanted.keys())
    changed = sum(value != initial[name] for name, value in wanted.items())
    return float(right / (changed + wrong))
