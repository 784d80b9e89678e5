"""Conversions."""

import re

from units.table import PREFERRED, UNITS

QUANTITY = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


class UnitError(ValueError):
    """An unknown unit, or two of different kinds."""


def unit(name):
    if name in UNITS:
        return UNITS[name]
    raise UnitError(f"unknown unit {name!r}")


def convert(text, target=None):
    """A quantity such as "3 km" in another unit; None is the preferred one of its kind."""
    match = QUANTITY.fullmatch(text)
    if match is None:
        raise UnitError(f"cannot read {text!r}")
    value, source = float(match[1]), unit(match[2])
    goal = unit(target or PREFERRED[source.kind])
    if source.kind != goal.kind and not source.zero:
        raise UnitError(f"{match[2]} is a {source.kind}, {target} a {goal.kind}")
    return value * source.factor / goal.factor


def show(text, target=None):
    """The conversion as text, with at most four digits behind the point."""
    value = convert(text, target)
    kind = unit(QUANTITY.fullmatch(text)[2]).kind
    digits = f"{value:.4f}".rstrip("0").rstrip(".")
    return f"{digits} {target or PREFERRED[kind]}"
