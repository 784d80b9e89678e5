"""Tools that a run adds to its environment's own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, SerializeAsAny

from agentrl.config.sections import OfPlugin, Section


class ToolConfig(Section):
    """Settings of every source of tools; its own settings are a subclass (`ToolSource.settings`)."""

    name: str
    """mcp, openapi, or an import path of a function with type hints, a `Tool`, a LangChain tool, or a list of these."""
    only: tuple[str, ...] = ()
    """The tools that are offered, by the names that the source gives them; none named: all."""
    timeout: PositiveFloat | None = None
    """Seconds that a call may take; None: rollout.tool_timeout."""
    start_timeout: PositiveFloat = 30.0
    """Seconds that the source may take to start and to list its tools."""
    max_chars: PositiveInt = 20_000
    """Characters of a result; the middle of a longer one is left out."""
    model_errors: tuple[Literal["ConnectionError", "TimeoutError", "OSError"], ...] = ()
    """Errors that the model causes by the address, the path, the size or the time that it asks for: it gets them as
    answers, besides those that a tool itself declares. Others of these kinds are the infrastructure's."""


ToolSection = Annotated[SerializeAsAny[ToolConfig], OfPlugin("agentrl.tools.sources:SOURCES")]
ToolSections = dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9]+([_-][A-Za-z0-9]+)*$")], ToolSection]
