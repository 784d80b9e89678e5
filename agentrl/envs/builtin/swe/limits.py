"""The limits of an episode: the agent gets them in its prompt, and a notice when one is nearly reached.

An agent that does not know its limits can't plan for them. Steps and tokens run out at the same turn every time;
seconds don't, so they are mentioned only when few are left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from agentrl.types import Message

BYTES_PER_TOKEN = 4
"""An estimate, since an environment sees no tokens. The run's own token limits are exact, and apply as well."""
LAST_STEPS = 5
"""Steps left from which on each message has a notice."""
LAST_SHARE = 0.2
"""Share of the seconds or tokens left from which on each message has a notice."""


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """An episode's budgets.

    Attributes:
        steps: answers of the agent.
        seconds: from its beginning.
        tokens: of all messages together, estimated.
        command_seconds: of one command.
        output_bytes: kept of a command's output.
    """

    steps: int = 40
    seconds: float = 600.0
    tokens: int = 60_000
    command_seconds: float = 20.0
    output_bytes: int = 8_000

    def words(self) -> str:
        """The limits, for the agent."""
        return (
            f"You have {self.steps} steps, {self.seconds:g} seconds and about {self.tokens} tokens. "
            f"A command may take {self.command_seconds:g} seconds; of an output longer than {self.output_bytes} bytes "
            "you see the beginning and the end."
        )


class LimitMeter:
    """A count of what is used up of the limits."""

    def __init__(self, limits: EpisodeLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits, self._clock = limits, clock
        self._began, self.steps, self._bytes = clock(), 0, 0

    def count(self, messages: Iterable[Message]) -> None:
        """Count the bytes of messages."""
        for message in messages:
            calls = sum(len(call.function.name) + len(call.function.arguments) for call in message.tool_calls or ())
            self._bytes += len(message.text.encode("utf-8", "replace")) + calls

    def state(self) -> dict[str, float]:
        """The used amounts, as plain data."""
        return {"steps": self.steps, "bytes": self._bytes, "seconds": self._clock() - self._began}

    def restore(self, state: dict[str, float]) -> None:
        """Continue from what `state` returned; the time between does not count."""
        self.steps, self._bytes = int(state["steps"]), int(state["bytes"])
        self._began = self._clock() - state["seconds"]

    @property
    def seconds_left(self) -> float:
        """Until the time is over."""
        return self._began + self.limits.seconds - self._clock()

    @property
    def tokens_left(self) -> int:
        """Until the tokens are used up, about."""
        return self.limits.tokens - self._bytes // BYTES_PER_TOKEN

    @property
    def spent(self) -> str | None:
        """The limit that is reached, if one is."""
        if self.steps >= self.limits.steps:
            return "steps"
        if self.seconds_left <= 0:
            return "seconds"
        return "tokens" if self.tokens_left <= 0 else None

    def notice(self) -> str:
        """Describe what is nearly used up; '' where there is plenty of everything."""
        steps = self.limits.steps - self.steps
        parts = []
        if steps <= LAST_STEPS:
            parts.append(f"{steps} step{'s' if steps != 1 else ''}")
        if self.seconds_left < LAST_SHARE * self.limits.seconds:
            parts.append(f"{max(0.0, self.seconds_left):.0f} seconds")
        if self.tokens_left < LAST_SHARE * self.limits.tokens:
            parts.append(f"about {max(0, self.tokens_left)} tokens")
        return f"[{' and '.join(parts)} left; work that is not submitted is judged as it stands]" if parts else ""
