"""The forms of the site: their fields, what each field takes, and values for them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

YES, NO = "yes", ""
"""The values of a checkbox's field."""
FIRST = ("Ana", "Ben", "Carla", "David", "Emma", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kim", "Lena")
LAST = ("Adler", "Berg", "Costa", "Diaz", "Evans", "Ford", "Gruber", "Hill", "Ito", "Jansen", "Kaya", "Lind")
CITIES = ("Oslo", "Porto", "Graz", "Turin", "Lyon", "Ghent", "Cork", "Basel", "Turku", "Split")
STREETS = ("Mill Lane", "High Street", "Park Road", "Station Road", "Church Street", "River Walk")
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)


@dataclass(frozen=True)
class Field:
    """One field of a form.

    Attributes:
        name: as it is in the record.
        label: as it is on the page.
        kind: how it is filled in.
        options: what can be chosen; the first one is chosen at first.
        pattern: what a text must look like, and `hint` says so; "" where anything but nothing will do.
        when: another field and its value, without which this one is not there.
    """

    name: str
    label: str
    kind: Literal["text", "choice", "checkbox", "radio"] = "text"
    options: tuple[str, ...] = ()
    pattern: str = ""
    hint: str = ""
    when: tuple[str, str] | None = None

    @property
    def initial(self) -> str:
        """The value before anybody has touched it."""
        return self.options[0] if self.options else NO

    def accepts(self, value: str) -> bool:
        """Return whether a value can be in a record."""
        if self.kind == "checkbox":
            return value in (YES, NO)
        return (
            value in self.options if self.options else bool(value) and bool(re.fullmatch(self.pattern or ".*", value))
        )


@dataclass(frozen=True)
class Form:
    """A form: what it is called, and its pages of fields."""

    name: str
    title: str
    pages: tuple[tuple[Field, ...], ...]

    def page(self, number: int, values: dict[str, str]) -> list[Field]:
        """The fields of a page, from 1, that are there with these values on the pages before."""
        return [
            field
            for field in self.pages[number - 1]
            if field.when is None or values.get(field.when[0]) == field.when[1]
        ]

    def fields(self, values: dict[str, str]) -> list[Field]:
        """All fields that are there with these values."""
        return [field for number in range(1, len(self.pages) + 1) for field in self.page(number, values)]


DATE = (r"20\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", "a date such as 2026-05-31")
NUMBER = (r"[1-9]\d{0,2}", "a whole number")
NAME = Field("name", "Full name")
EMAIL = Field("email", "E-mail", pattern=r"[^@\s]+@[^@\s]+\.[a-z]+", hint="an address with an @")
PHONE = Field("phone", "Phone", pattern=r"\+\d{6,15}", hint="+ and digits without spaces")
CITY = Field("city", "City")
STREET = Field("street", "Street and number")
POSTCODE = Field("postcode", "Postcode", pattern=r"\d{5}", hint="five digits")
COMPANY = Field("company", "Company")
START = Field("start", "First day", pattern=DATE[0], hint=DATE[1])
END = Field("end", "Last day", pattern=DATE[0], hint=DATE[1])
BY = Field("by", "We may answer by", "radio", ("e-mail", "phone", "letter"))
NEWS = Field("news", "Send me the newsletter", "checkbox")
PEOPLE = Field("people", "Number of people", pattern=NUMBER[0], hint=NUMBER[1])
SIMPLE = (NAME, EMAIL, PHONE, CITY, STREET, POSTCODE, COMPANY)
"""Fields of level 1, of which each task's form has three."""

FORMS = {
    form.name: form
    for form in (
        Form(
            "leave",
            "Request for leave",
            (
                (NAME, Field("team", "Team", "choice", ("sales", "support", "research", "finance"))),
                (START, END, Field("kind", "Kind of leave", "radio", ("holiday", "illness", "training"))),
                (
                    Field("course", "Course", when=("kind", "training")),
                    Field("half", "The last day is half a day", "checkbox"),
                ),
            ),
        ),
        Form(
            "travel",
            "Booking of a journey",
            (
                (NAME, EMAIL, Field("to", "Destination", "choice", CITIES)),
                (START, PEOPLE, Field("hotel", "I need a hotel", "checkbox")),
                (
                    Field("nights", "Nights", pattern=NUMBER[0], hint=NUMBER[1], when=("hotel", YES)),
                    Field("by_train", "Travel by", "radio", ("train", "bus", "plane")),
                ),
            ),
        ),
        Form(
            "member",
            "Application for membership",
            (
                (NAME, EMAIL, PHONE),
                (STREET, POSTCODE, CITY),
                (Field("rate", "Rate", "choice", ("full", "student", "family")), BY, NEWS),
            ),
        ),
        Form(
            "repair",
            "Report of something broken",
            (
                (NAME, PHONE, COMPANY),
                (Field("device", "Device", "choice", ("printer", "laptop", "phone", "screen")), START),
                (Field("urgent", "It is urgent", "checkbox"), BY),
            ),
        ),
    )
}
"""The forms of levels 2 (all fields on one page) and 3 (several pages, and the right form has to be found)."""


def value_of(field: Field, rng: random.Random) -> str:
    """A value that a field takes."""
    if field.options:
        return rng.choice(field.options)
    if field.kind == "checkbox":
        return rng.choice((YES, NO))
    return MADE[field.name](rng)


def _person(rng: random.Random) -> str:
    return f"{rng.choice(FIRST)} {rng.choice(LAST)}"


def _day(rng: random.Random) -> str:
    return f"2026-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


MADE: dict[str, Callable[[random.Random], str]] = {
    "name": _person,
    "email": lambda rng: f"{rng.choice(FIRST)}.{rng.choice(LAST)}@mail.test".lower(),
    "phone": lambda rng: f"+{rng.randint(10**8, 10**9 - 1)}",
    "city": lambda rng: rng.choice(CITIES),
    "street": lambda rng: f"{rng.choice(STREETS)} {rng.randint(1, 99)}",
    "postcode": lambda rng: f"{rng.randint(10000, 99999)}",
    "company": lambda rng: f"{rng.choice(LAST)} & {rng.choice(LAST)}",
    "start": _day,
    "end": _day,
    "people": lambda rng: str(rng.randint(1, 9)),
    "nights": lambda rng: str(rng.randint(1, 14)),
    "course": lambda rng: f"{rng.choice(('First aid', 'Accounting', 'Spanish', 'Welding'))} {rng.randint(1, 9)}",
}
"""Values of the fields of text."""
