"""Sandbox backends: those of agentrl, of installed packages (entry points), and import paths `module:function`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from agentrl.registry import Registry
from agentrl.tools.sandbox.base import Sandbox
from agentrl.tools.sandbox.spec import SandboxSpec

Create = Callable[[SandboxSpec], Awaitable[Sandbox]]

SANDBOXES: Registry[Create] = Registry(
    "sandbox backend",
    "sandbox",
    "agentrl.sandboxes",
    {
        "docker": "agentrl.tools.sandbox.docker.backend:create_docker",
        "remote": "agentrl.tools.sandbox.remote.backend:create_remote",
        "subprocess": "agentrl.tools.sandbox.local:create_subprocess",
    },
    accept=lambda found: found if callable(found) else None,
)
"""The functions that create sandboxes, by name."""


def backend(name: str) -> Create:
    """The function that creates a backend's sandboxes.

    Raises:
        UnknownName: no such backend.
        ConfigError: importing it failed, or it is no function.
    """
    return SANDBOXES.find(name)


async def create(spec: SandboxSpec | None = None, name: str = "docker") -> Sandbox:
    """Start one sandbox, and return it."""
    return await backend(name)(spec or SandboxSpec())
