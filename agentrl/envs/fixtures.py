"""`Fixture`: an agent's messages whose credit is known, which an environment ships as a test of its own rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentrl.types import Message, Task


class FixtureCredit(StrEnum):
    """The share of the reward that an answer must get."""

    FULL = "full"  # the greatest score that the declared ranges allow
    PARTIAL = "partial"  # neither the greatest nor the least
    NONE = "none"  # the least


@dataclass(frozen=True)
class Fixture:
    """An agent's words in an episode of a task, and the credit that they must get.

    Attributes:
        task: the task, as `Env.tasks` gives them.
        said: the agent's messages in order, text or `Message`; after them it says nothing.
        credit: how much; a number is the exact score.
        about: what the fixture shows, in a few words.
    """

    task: Task | Mapping[str, Any]
    said: str | Message | Sequence[str | Message]
    credit: FixtureCredit | float
    about: str = ""

    @property
    def messages(self) -> list[Message]:
        """The agent's messages."""
        said = [self.said] if isinstance(self.said, str | Message) else self.said
        return [Message(role="assistant", content=one) if isinstance(one, str) else one for one in said]
