"""An API's questions and answers, whichever protocol it speaks."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

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


class Api(ABC):
    """A client of an API, by its provider's SDK.

    Args:
        url: where the API is.
        model: its name there.
        client: the SDK's.
        extra: fields of each request.
    """

    path: ClassVar[str]
    answer: ClassVar[str]
    """The name of its answers in messages."""
    refused: ClassVar[type[Exception]]
    """The SDK's error of an answer with another status than that of success."""
    failed: ClassVar[type[Exception]]
    """The root of the SDK's errors."""

    def __init__(self, url: str, model: str, client: Any, extra: Mapping[str, Any]) -> None:
        self._url, self._model, self._client, self._extra = url, model, client, dict(extra)

    async def ask(self, messages: Sequence[Message], tools: Sequence[ToolSchema], sampling: Sampling) -> Reply:
        """The next message of a conversation.

        Raises:
            TokenBudgetExceeded: the conversation is longer than the model's context.
            ConfigError: the key, the address or the model is wrong.
            EngineError: the provider can't be reached, or fails.
        """
        body = {"model": self._model} | self.body(messages, tools, sampling.max_new_tokens)
        if sampling.temperature != 1:  # the protocols' default, and all that some models take
            body["temperature"] = sampling.temperature
        if sampling.top_p < 1:
            body["top_p"] = sampling.top_p
        try:
            answer: Any = await self._client.post(self.path, body=body | self._extra, cast_to=object)
        except self.refused as error:
            raise refusal(cast(Any, error).status_code, self._url, error) from error
        except self.failed as error:
            raise EngineError(f"{self._url}: {type(error).__name__}: {error.__cause__ or error}") from error
        try:
            return self.read(answer)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise EngineError(
                f"{self._url} answered with something else than {self.answer}: {answer!r:.200}"
            ) from error

    @abstractmethod
    def body(self, messages: Sequence[Message], tools: Sequence[ToolSchema], limit: int | None) -> dict[str, Any]:
        """The fields of a request that are the protocol's own."""

    @staticmethod
    @abstractmethod
    def read(answer: Any) -> Reply:
        """The reply in a response's JSON.

        Raises:
            KeyError, IndexError, TypeError, ValueError, AttributeError: it is none.
        """

    async def close(self) -> None:
        """Close the client's connections."""
        await self._client.close()


def refusal(status: int, url: str, error: Any) -> AgentRLError:
    """The error of an answer with that status."""
    if status in REFUSED:
        return ConfigError(f"policy={url!r} {REFUSED[status]} (HTTP {status}): {error}")
    if status in (400, 413, 422) and _TOO_LONG.search(str(error)):
        return TokenBudgetExceeded(f"the conversation is longer than the model's context: {error}")
    return EngineError(f"{url} answered HTTP {status}: {error}")
