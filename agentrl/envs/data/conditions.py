"""Conditions on the fields of a row or a task: a value, a list of values, or bounds {"min": 1, "max": 5}."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.config.yaml_settings import SWITCHES
from agentrl.errors import ConfigError


def conditions(where: Mapping[str, Any], setting: str = "env.where", prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The conditions of a setting by field, checked before anything is read; `a.b` is inside a field.

    Raises:
        ConfigError: a bound is no number.
    """
    for key, wanted in where.items():
        name = f"{prefix}{key}"
        if not isinstance(wanted, Mapping):
            yield name, wanted
        elif not {*wanted} <= {"min", "max"}:
            yield from conditions(wanted, setting, f"{name}.")
        else:
            try:
                yield name, {bound: float(value) for bound, value in wanted.items()}
            except (TypeError, ValueError, OverflowError):
                raise ConfigError(f"{setting}.{name}={dict(wanted)!r}: the bounds must be numbers") from None


def fits(value: Any, wanted: Any) -> bool:
    """Return whether a field's value is the one that is wanted, one of those, or within the bounds."""
    if isinstance(wanted, Mapping):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            return False
        return bool(wanted.get("min", -math.inf) <= number <= wanted.get("max", math.inf))
    allowed = wanted if isinstance(wanted, list | tuple) else [wanted]
    if isinstance(value, bool):
        allowed = [SWITCHES.get(str(each).lower(), each) for each in allowed]
    if value in allowed or str(value) in map(str, allowed):  # a CSV file has text alone
        return True
    switches = [str(each).lower() for each in allowed if isinstance(each, bool)]
    return isinstance(value, str) and value.lower() in switches


def inside(data: Mapping[str, Any], name: str) -> Any:
    """Return the value of a field; `a.b` is inside `a`, unless a field is called so.

    Raises:
        KeyError: there is none.
    """
    found: Any = data
    for part in [name] if name in data else name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise KeyError(name)
        found = found[part]
    return found
