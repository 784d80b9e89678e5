"""Addresses as clients write them: a session's endpoints are found with `/v1` once, twice or left out.

What one client takes for a base URL has `/v1`, and another adds it itself, although both read the same variable of the
environment. Some double a slash or end with one, and Azure's clients name the model in the address too.
"""

from __future__ import annotations

import functools
import re

_OWN = ("", "reward", "close")
"""The addresses within a session that are no protocol's."""
DEPLOYMENT = "agentrl.deployment"
"""The key in a request's scope of the model that its address names, as Azure's do; its body may name none then."""
_DEPLOYMENT = re.compile(r"/deployments/([^/]+)/")
_VERSION = re.compile(r"(?:(?:v1|openai|deployments/[^/]+)(?:/|$))*")


def plain_path(path: str) -> str:
    """The path that the application knows for one that a client has requested."""
    parts = path.split("/", 3)
    if len(parts) == 4 and parts[:2] == ["", "sessions"] and parts[2]:
        return f"/sessions/{parts[2]}{_plain_within(parts[3])}"
    plain = f"/{'/'.join(filter(None, path.split('/')))}"
    return plain if plain == path or plain.count("/") < 3 else plain_path(plain)


def deployment_in(path: str) -> str | None:
    """The model that an address of Azure's form names; None in others."""
    found = _DEPLOYMENT.search(path)
    return None if found is None else found[1]


@functools.lru_cache(maxsize=256)
def _plain_within(asked: str) -> str:
    """The same for what follows a session's id."""
    plain = "/".join(filter(None, asked.split("/")))
    if plain in _OWN:
        return f"/{plain}" if plain else ""
    plain = _VERSION.sub("", plain, count=1)
    return f"/{plain}" if plain.startswith("v1beta/") else f"/v1/{plain}"
