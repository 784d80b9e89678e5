"""Writing TOML (https://toml.io), as far as tasks need it; the standard library only reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

WIDTH = 100
"""An array longer than this has a line for each item."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dumps(table: Mapping[str, Any]) -> str:
    """A document of strings, numbers, booleans, arrays of them, tables, and arrays of tables."""
    return "\n".join(_lines(table, ())).lstrip("\n") + "\n"


def _lines(table: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[str]:
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    arrays = {key: value for key, value in table.items() if _of_tables(value)}
    for key, value in table.items():
        if key not in tables and key not in arrays:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in tables.items():
        yield from ("", f"[{_name((*above, key))}]")
        yield from _lines(value, (*above, key))
    for key, values in arrays.items():
        for value in values:
            yield from ("", f"[[{_name((*above, key))}]]")
            yield from _lines(value, (*above, key))


def _of_tables(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        items = [_value(item) for item in value]
        line = f"[{', '.join(items)}]"
        return line if len(line) <= WIDTH else "[\n" + "".join(f"    {item},\n" for item in items) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _value(key)


def _name(path: tuple[str, ...]) -> str:
    return ".".join(_key(key) for key in path)
