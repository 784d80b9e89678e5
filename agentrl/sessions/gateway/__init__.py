"""The gateway: OpenAI's and Anthropic's HTTP APIs over any engine, with every turn stored token for token.

Requests become `TurnRequest`s (`wire/`), are matched to the session's tree (`matching`, `session_state`), are
generated and parsed (`exchange`, `reading`), sent, and only then stored (`delivery`). `Gateway` holds the sessions,
`create_app` is its HTTP API, `running` and `serve` put it on a port.

Importing this package imports no web framework and no SDK; its functions do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.sessions.gateway.gateway import Access, Gateway
    from agentrl.sessions.gateway.http.app import create_app
    from agentrl.sessions.gateway.http.server import running, serve
    from agentrl.sessions.gateway.limits import Limits
    from agentrl.sessions.gateway.rewards import CloseBody

__all__ = ["Access", "CloseBody", "Gateway", "Limits", "create_app", "running", "serve"]

_MODULES = {
    "create_app": "http.app",
    "Access": "gateway",
    "Gateway": "gateway",
    "Limits": "limits",
    "CloseBody": "rewards",
    "running": "http.server",
    "serve": "http.server",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    from agentrl.errors import require_extra

    with require_extra("gateway"):
        module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    return getattr(module, name)
