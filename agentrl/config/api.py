"""A model behind an OpenAI-compatible or Anthropic API."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from agentrl.config.sections import Section

URL = ("http://", "https://")
"""The beginning of a policy that is the address of an API."""


class ApiConfig(Section):
    """The API of `policy=URL`."""

    protocol: Literal["openai", "anthropic"] = "openai"
    """Its protocol: OpenAI's Chat Completions (the URL ends in /v1, as a rule), or Anthropic's Messages."""
    model: str = ""
    """The model's name there."""
    key_env: str | None = None
    """The environment variable that has the key; None is OPENAI_API_KEY, or ANTHROPIC_API_KEY."""
    retries: int = Field(default=5, ge=0)
    """The number of times that a request is sent again, after growing pauses, which was refused for its rate or
    failed."""
    extra: dict[str, Any] = Field(default={})
    """Further fields of each request, such as api.extra.reasoning_effort=high."""
