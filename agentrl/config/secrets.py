"""Which settings are secret: they are used, and never written, shown or sent to anybody else.

They are known by their names, wherever they stand (an engine's `api_key`, an environment's own `hf_token`, a header
`Authorization`), and URLs by a password in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

HIDDEN = "(hidden)"
"""Stands for a secret in whatever is written."""
_NAME = re.compile(
    r"(^|[._-])((api|admin|access|private|secret|signing)[_-]?key|secret|password|passwd|passphrase|token|authorization"
    r"|credentials?)$",
    re.IGNORECASE,
)
_URL = re.compile(r"://[^/@\s]*:[^/@\s]+@")


def is_secret(name: str, value: Any) -> bool:
    """Whether a setting of that (dotted) name and value is one; what is no text is none."""
    return isinstance(value, str) and bool(value) and bool(_NAME.search(name) or _URL.search(value))


def without_secrets(value: Any, name: str = "") -> Any:
    """A tree of settings, in which each secret is `HIDDEN`."""
    if isinstance(value, Mapping):
        return {key: without_secrets(below, str(key)) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(item, name) for item in value]
    return HIDDEN if is_secret(name, value) else value


def hidden(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted names of the settings whose value was hidden."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from hidden(value, f"{prefix}{key}.")
        elif value == HIDDEN or (isinstance(value, list) and HIDDEN in value):
            yield f"{prefix}{key}"


def secret_values(value: Any, name: str = "") -> Iterator[str]:
    """The secrets in a tree of settings."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from secret_values(below, str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from secret_values(item, name)
    elif is_secret(name, value):
        yield value
