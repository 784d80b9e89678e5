"""Completion in a shell: settings of a run, and the names that a setting can have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import typer


def complete_setting(incomplete: str) -> list[str]:
    """Return the words that begin with what was typed: settings with their `=`, or values behind it.

    Nothing that a shell asks for may fail aloud, so that a name that can't be looked up has no values.
    """
    key, equals, _ = incomplete.partition("=")
    words = _values(key) if equals else _names()
    return sorted(word for word in words if word.startswith(incomplete))


def _names() -> Iterator[str]:
    from agentrl.config import RunConfig
    from agentrl.overrides import fields

    yield from (f"{name}=" for name, _, _ in fields(RunConfig, {}) if "NAME" not in name)


def _values(key: str) -> Iterable[str]:
    from agentrl.config import RunConfig
    from agentrl.envs.registry import ENVS
    from agentrl.overrides import plugin_sections

    if key == "env":
        return [f"env={name}" for name in ENVS.known()]
    mark = plugin_sections(RunConfig).get(key)
    return [] if mark is None else [f"{key}={name}" for name in mark.plugins().known()]


SETTINGS: Any = typer.Argument(help="Settings as key=value.", show_default=False, autocompletion=complete_setting)
"""The words of a command that takes a run's settings."""
