"""Units: their kind, how many of the kind's base unit they are, and where their zero lies in base units."""

from typing import NamedTuple


class Unit(NamedTuple):
    kind: str
    factor: float
    zero: float = 0.0


UNITS = {
    "m": Unit("length", 1),
    "km": Unit("length", 1000),
    "cm": Unit("length", 0.01),
    "in": Unit("length", 0.0254),
    "ft": Unit("length", 0.3048),
    "mi": Unit("length", 1609.344),
    "g": Unit("weight", 1),
    "kg": Unit("weight", 1000),
    "lb": Unit("weight", 453.59237),
    "K": Unit("temperature", 1),
    "C": Unit("temperature", 1, 273.15),
    "F": Unit("temperature", 5 / 9, 459.67),
}
PREFERRED = {"length": "m", "weight": "kg", "temperature": "C"}
