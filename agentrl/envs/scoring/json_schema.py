"""JSON Schema as far as answers need it, with a bound on what a check may cost.

The keywords of draft 2020-12 (https://json-schema.org/draft/2020-12) that say what a value is: not annotations, which
are passed over, and not `$dynamicRef`, `unevaluated*`, `dependent*` and references to other documents, which are
refused when the schema is read. `format` is an annotation, as that draft has it. Patterns come from data and are
searched for within `common.patterns`' limits. Schema and value may both be somebody else's, so a check ends after
`MOST_STEPS`, and its value is then not allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import orjson

from agentrl.common import patterns
from agentrl.errors import ConfigError

MOST_STEPS = 100_000
"""Comparisons of a value with a schema."""
SEARCH_STEPS = 250
"""Steps that the search for a pattern counts as: it may start a process."""
DEPTH = 64
"""Schemas within schemas that are followed on the way to a value, references included."""
_TYPES: Mapping[str, Any] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: _is_number(value),
    "integer": lambda value: _is_number(value) and float(value).is_integer(),
}
_REFUSED = ("$dynamicRef", "unevaluatedItems", "unevaluatedProperties", "dependentSchemas", "dependentRequired")
_LISTS, _MAPPINGS = (
    ("anyOf", "allOf", "oneOf", "prefixItems"),
    ("properties", "patternProperties", "$defs", "definitions"),
)
_ONES = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")


class _TooMuch(Exception):
    """A check took more than `MOST_STEPS`."""


@dataclass(frozen=True)
class Schema:
    """A schema that was read; `allows` compares values with it."""

    root: Any

    @staticmethod
    def of(value: Any, where: str) -> Schema:
        """Return a schema, from what it is or its text.

        Raises:
            ConfigError: it is none, or has keywords that are not known here.
        """
        try:
            root = orjson.loads(value) if isinstance(value, str | bytes) else value
        except ValueError as error:
            raise ConfigError(f"{where}: the schema is no JSON: {error}") from None
        schema = Schema(root)
        for place, each in schema._parts(root, "#", DEPTH):
            if not isinstance(each, dict | bool):
                raise ConfigError(f"{where}: {place} is {each!r:.60}, and no schema")
            if isinstance(each, dict):
                schema._check(each, f"{where}: {place}")
        return schema

    @staticmethod
    def read(path: str) -> Schema:
        """Return the schema in a file; ConfigError where there is none."""
        try:
            data = Path(path).expanduser().read_bytes()
        except OSError as error:
            raise ConfigError(f"path={path!r}: {error.strerror}") from None
        return Schema.of(data, f"path={path!r}")

    def allows(self, value: Any) -> bool:
        """Return whether a value is one that the schema describes.

        Raises:
            ConfigError: a keyword has a value of the wrong kind.
        """
        try:
            return _Check(self, MOST_STEPS).fits(value, self.root, DEPTH)
        except (_TooMuch, RecursionError, patterns.PatternTooSlow):
            return False
        except (TypeError, AttributeError, ValueError, re.error) as error:  # a bound that is no number, say
            raise ConfigError(f"the schema can't be used: {error}") from None

    def at(self, reference: str) -> Any:
        """Return the part of the schema that a reference within it names; ConfigError where there is none."""
        found: Any = self.root
        for part in reference.removeprefix("#").split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(key)] if isinstance(found, list) else found[key]
            except (KeyError, IndexError, ValueError, TypeError):
                raise ConfigError(f"the schema has no {reference!r}") from None
        return found

    def _check(self, schema: Mapping[str, Any], where: str) -> None:
        if unknown := [name for name in _REFUSED if name in schema]:
            raise ConfigError(f"{where} has {unknown[0]}, which is not supported")
        types = schema.get("type", [])
        for kind in types if isinstance(types, list) else [types]:
            if kind not in _TYPES:
                raise ConfigError(f"{where}: type={kind!r}: allowed are {', '.join(_TYPES)}")
        if (reference := schema.get("$ref")) is not None:
            if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
                raise ConfigError(
                    f"{where}: $ref={reference!r}: a place in the same schema is allowed, as in #/$defs/NAME"
                )
            self.at(reference)

    def _parts(self, schema: Any, place: str, depth: int) -> Iterator[tuple[str, Any]]:
        """The schema and those in it, by place."""
        yield place, schema
        if not isinstance(schema, dict):
            return
        if not depth:
            raise ConfigError(f"{place}: schemas are nested more than {DEPTH} deep")
        for name in _ONES:
            if name in schema:
                yield from self._parts(schema[name], f"{place}/{name}", depth - 1)
        for name in (*_LISTS, *_MAPPINGS):
            below = schema.get(name, ())
            if not isinstance(below, list if name in _LISTS else dict) and name in schema:
                raise ConfigError(f"{place}/{name}: {below!r:.60} is of the wrong kind")
            each = below.items() if isinstance(below, dict) else enumerate(below)
            for key, part in each:
                yield from self._parts(part, f"{place}/{name}/{key}", depth - 1)


class _Check:
    """One comparison of a value, with a count of its steps."""

    def __init__(self, schema: Schema, steps: int) -> None:
        self._schema, self._left = schema, steps

    def fits(self, value: Any, schema: Any, depth: int) -> bool:
        self._left -= 1
        if self._left < 0 or not depth:
            raise _TooMuch
        if isinstance(schema, bool):
            return schema
        if "$ref" in schema and not self.fits(value, self._schema.at(schema["$ref"]), depth - 1):
            return False
        types = schema.get("type")
        if types is not None and not any(
            _TYPES[kind](value) for kind in ([types] if isinstance(types, str) else types)
        ):
            return False
        if "enum" in schema and not any(_same(value, each) for each in schema["enum"]):
            return False
        if "const" in schema and not _same(value, schema["const"]):
            return False
        return self._check_combined(value, schema, depth - 1) and self._kind(value, schema, depth - 1)

    def _check_combined(self, value: Any, schema: Mapping[str, Any], depth: int) -> bool:
        if not all(self.fits(value, each, depth) for each in schema.get("allOf", ())):
            return False
        if "anyOf" in schema and not any(self.fits(value, each, depth) for each in schema["anyOf"]):
            return False
        if "oneOf" in schema and sum(self.fits(value, each, depth) for each in schema["oneOf"]) != 1:
            return False
        if "not" in schema and self.fits(value, schema["not"], depth):
            return False
        if "if" not in schema:
            return True
        branch = schema.get("then" if self.fits(value, schema["if"], depth) else "else", True)
        return self.fits(value, branch, depth)

    def _kind(self, value: Any, schema: Mapping[str, Any], depth: int) -> bool:
        if isinstance(value, dict):
            return self._object(value, schema, depth)
        if isinstance(value, list):
            return self._array(value, schema, depth)
        if isinstance(value, str):
            long = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
            return long and ("pattern" not in schema or self._matches(schema["pattern"], value))
        return not _is_number(value) or _number(value, schema)

    def _matches(self, pattern: str, text: str) -> bool:
        self._left -= SEARCH_STEPS
        if self._left < 0:
            raise _TooMuch
        return patterns.is_in(pattern, text)

    def _object(self, value: Mapping[str, Any], schema: Mapping[str, Any], depth: int) -> bool:
        if not schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", len(value)):
            return False
        if not all(name in value for name in schema.get("required", ())):
            return False
        own, by_pattern = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, each in value.items():
            fitting = [own[name]] if name in own else []
            fitting += [part for pattern, part in by_pattern.items() if self._matches(pattern, name)]
            if "propertyNames" in schema and not self.fits(name, schema["propertyNames"], depth):
                return False
            others = fitting or [schema.get("additionalProperties", True)]
            if not all(self.fits(each, part, depth) for part in others):
                return False
        return True

    def _array(self, value: list[Any], schema: Mapping[str, Any], depth: int) -> bool:
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            return False
        first = schema.get("prefixItems", ())
        if not all(self.fits(each, part, depth) for each, part in zip(value, first, strict=False)):
            return False
        if not all(self.fits(each, schema.get("items", True), depth) for each in value[len(first) :]):
            return False
        if schema.get("uniqueItems") and len({_canonical(each) for each in value}) < len(value):
            return False
        if "contains" not in schema:
            return True
        count = sum(self.fits(each, schema["contains"], depth) for each in value)
        return bool(schema.get("minContains", 1) <= count <= schema.get("maxContains", count))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: float, schema: Mapping[str, Any]) -> bool:
    if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return False
    if value <= schema.get("exclusiveMinimum", float("-inf")) or value >= schema.get("exclusiveMaximum", float("inf")):
        return False
    if "multipleOf" not in schema:
        return True
    return float(value / schema["multipleOf"]).is_integer()


def _same(one: Any, other: Any) -> bool:
    return _canonical(one) == _canonical(other)


def _canonical(value: Any) -> bytes:
    """A value's bytes; 1 and 1.0 are the same, 1 and true are not."""
    return orjson.dumps(_whole(value), option=orjson.OPT_SORT_KEYS)


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value == int(value) and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return {name: _whole(each) for name, each in value.items()} if isinstance(value, dict) else value
