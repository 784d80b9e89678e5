"""An API's questions and answers, whichever protocol it speaks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.errors import AgentRLError, ConfigError, EngineError, TokenBudgetExceeded
from agentrl.rollout.stream.usage import Usage
from agentrl.sessions.renderers.base import ToolSchema
from agentrl.types import FinishReason, Message, Sampling

REFUSED = {401: "refuses the key", 403: "forbids the request", 404: "has no such address or model"}
"""Answers that every session would get."""
_TOO_LONG = re.compile(r"context|too long|too many tokens|maximum.{0,20}(length|tokens)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's message, why it ended, and the tokens that the provider counted."""

    message: Message
    finish: FinishReason
    usage: Usage


class Api(Protocol):
    """The client of an API's provider."""

    async def ask(self, messages: Sequence[Message], tools: Sequence[ToolSchema], sampling: Sampling) -> Reply:
        """The next message of a conversation.

        Raises:
            TokenBudgetExceeded: the conversation is longer than the model's context.
            ConfigError: the key, the address or the model is wrong.
            EngineError: the provider can't be reached, or fails.
        """

    async def close(self) -> None:
        """Close the client's connections."""


def refusal(status: int, url: str, error: Any) -> AgentRLError:
    """The error of an answer with that status."""
    if status in REFUSED:
        return ConfigError(f"policy={url!r} {REFUSED[status]} (HTTP {status}): {error}")
    if status in (400, 413, 422) and _TOO_LONG.search(str(error)):
        return TokenBudgetExceeded(f"the conversation is longer than the model's context: {error}")
    return EngineError(f"{url} answered HTTP {status}: {error}")
