"""Gymnasium's spaces as text, JSON and JSON schemas: observations are written for a model, actions are read from it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from agentrl.errors import ConfigError, ToolArguments
from agentrl.tools.schema import show_value

Schema = dict[str, Any]
MAX_NUMBERS = 1000
"""An observation of more numbers, such as a picture, is not written out."""
UNBOUNDED = 1e30
"""A bound beyond it is none: Gymnasium's own environments write the largest float for infinity."""


def schema(space: spaces.Space[Any]) -> Schema:
    """The JSON schema of a space's elements; ConfigError where its elements can't be written as JSON."""
    match space:
        case spaces.Discrete():
            first = int(space.start)
            return {"type": "integer", "minimum": first, "maximum": first + int(space.n) - 1}
        case spaces.MultiDiscrete() | spaces.MultiBinary() | spaces.Box():
            low, high = _bounds(space)
            kind = "number" if np.issubdtype(space.dtype, np.floating) else "integer"
            return _nest({"type": kind, **_limits(low, high)}, space.shape)
        case spaces.Text():
            return {"type": "string", "minLength": int(space.min_length), "maxLength": int(space.max_length)}
        case spaces.Dict():
            parts = {name: schema(part) for name, part in space.spaces.items()}
            return {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}
        case spaces.Tuple():
            return {"type": "array", "prefixItems": [schema(part) for part in space.spaces], **_length(len(space))}
    raise ConfigError(
        f"{space} can't be written as a tool's arguments: allowed: Discrete, Box, MultiDiscrete, MultiBinary, Text, "
        "Dict and Tuple"
    )


def describe_space(space: spaces.Space[Any]) -> str:
    """Describe the elements of a space."""
    match space:
        case spaces.Discrete():
            return f"a whole number from {int(space.start)} to {int(space.start + space.n) - 1}"
        case spaces.MultiDiscrete() | spaces.MultiBinary() | spaces.Box():
            low, high = _bounds(space)
            what = "number" if np.issubdtype(space.dtype, np.floating) else "whole number"
            if not space.shape:
                return f"a {what}{_range(low, high)}"
            if _even(low) and _even(high):
                return f"a list of {' by '.join(map(str, space.shape))} {what}s{_range(low, high)}"
            each = (f"{what}{_range(*ends)}" for ends in zip(low.flat, high.flat, strict=True))
            return f"a list of {' by '.join(map(str, space.shape))}: {', '.join(each)}"
        case spaces.Text():
            return (
                f"text of {space.min_length} to {space.max_length} characters of {''.join(sorted(space.character_set))}"
            )
        case spaces.Dict():
            return ", ".join(f"{name}: {describe_space(part)}" for name, part in space.spaces.items())
        case spaces.Tuple():
            return f"a list of {'; '.join(map(describe_space, space.spaces))}"
    return str(space)


def read(space: spaces.Space[Any], value: Any, names: Sequence[str] = ()) -> Any:
    """The element that decoded JSON stands for.

    Args:
        space: what it must be an element of.
        value: what a model wrote.
        names: of the elements of a Discrete space, in order.

    Raises:
        ToolArguments: it is no element; the message says what is allowed.
    """
    if names:
        known = [name.casefold() for name in names]
        if isinstance(value, str) and value.strip().casefold() in known:
            return int(space.start) + known.index(value.strip().casefold())
        raise ToolArguments(f"action = {show_value(value)}: allowed: {', '.join(names)}")
    try:
        element = _element(space, value)
        allowed = space.contains(element)
    except (TypeError, ValueError, OverflowError, KeyError):
        allowed = False
    if not allowed:
        raise ToolArguments(f"action = {show_value(value)}: allowed: {describe_space(space)}")
    return element


def plain(space: spaces.Space[Any], element: Any, digits: int | None = None) -> Any:
    """An element as data that JSON can express; floats with so many significant digits (None: all)."""
    match space:
        case spaces.Dict():
            return {name: plain(part, element[name], digits) for name, part in space.spaces.items()}
        case spaces.Tuple():
            return [plain(part, value, digits) for part, value in zip(space.spaces, element, strict=True)]
        case spaces.Text():
            return str(element)
        case spaces.Discrete() | spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return round_value(np.asarray(element).tolist(), digits)
    return str(element)


def text(space: spaces.Space[Any], element: Any, digits: int = 4) -> str:
    """An observation as a model reads it: text as it is, mappings by line, anything else as JSON."""
    if isinstance(space, spaces.Dict):
        return "\n".join(f"{name}: {text(part, element[name], digits)}" for name, part in space.spaces.items())
    value = plain(space, element, digits)
    return value if isinstance(value, str) else json.dumps(value)


def numbers(space: spaces.Space[Any]) -> int:
    """Count the numbers of an element."""
    if isinstance(space, spaces.Dict):
        return sum(map(numbers, space.spaces.values()))
    if isinstance(space, spaces.Tuple):
        return sum(map(numbers, space.spaces))
    return math.prod(space.shape or ())


def round_value(value: Any, digits: int | None) -> Any:
    """A number, or lists of them, with so many significant digits (None: all)."""
    if isinstance(value, list):
        return [round_value(item, digits) for item in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) and digits is not None else value


def _element(space: spaces.Space[Any], value: Any) -> Any:
    match space:
        case spaces.Dict():
            if set(value) != set(space.spaces):
                raise ValueError
            return {name: _element(part, value[name]) for name, part in space.spaces.items()}
        case spaces.Tuple():
            return tuple(_element(part, item) for part, item in zip(space.spaces, value, strict=True))
        case spaces.Text():
            return value
    array = np.asarray(value)
    if array.dtype.kind not in "iuf" or (space.shape or ()) != array.shape:
        raise ValueError
    with np.errstate(invalid="ignore"):  # an infinite number has no whole one, and is refused below
        exact = array.astype(space.dtype)
    if not np.issubdtype(space.dtype, np.floating) and not np.array_equal(exact, array):
        raise ValueError
    return int(exact) if isinstance(space, spaces.Discrete) else exact


def _bounds(space: spaces.Space[Any]) -> tuple[Any, Any]:
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, int), np.ones(space.shape, int)
    assert isinstance(space, spaces.Box)
    return space.low, space.high


def _even(bound: Any) -> bool:
    return bool(np.all(bound == np.ravel(bound)[0]))


def _limits(low: Any, high: Any) -> Schema:
    """The bounds that hold for every number, where they are finite."""
    ends = {"minimum": np.min(low), "maximum": np.max(high)}
    return {name: end.item() for name, end in ends.items() if abs(end) < UNBOUNDED}


def _range(low: Any, high: Any) -> str:
    limits = _limits(np.asarray(low), np.asarray(high))
    words = {"minimum": f"from {limits.get('minimum'):g}" if "minimum" in limits else ""}
    words["maximum"] = f"to {limits['maximum']:g}" if "maximum" in limits else ""
    return "".join(f" {word}" for word in words.values() if word)


def _nest(item: Schema, shape: Sequence[int]) -> Schema:
    for size in reversed(shape):
        item = {"type": "array", "items": item, **_length(size)}
    return item


def _length(size: int) -> Schema:
    return {"minItems": int(size), "maxItems": int(size)}
