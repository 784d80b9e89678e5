"""Open sessions of a gateway, and the speakers that answer their requests.

By default one policy answers every request of a session, whatever model it names. Where a program's agents have
policies of their own, a request's model says which agent's it is. Each agent has roots of its own in the session's
tree, so tokens of different tokenizers are on no common path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentrl.sessions.gateway.exchange import Parts
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.session_state import SessionState
from agentrl.types import AGENT


@dataclass(frozen=True, slots=True)
class Speaker:
    """Answers requests.

    Attributes:
        parts: the engine, the renderer and the limits that an exchange has.
        limits: how its requests are read; they have the sampling of its turns.
        agent: the agent whose turns these are; None where agents are told apart by their system prompts.
    """

    parts: Parts
    limits: Limits
    agent: str | None = None


@dataclass
class SessionEntry:
    """A session that is not sealed yet.

    Attributes:
        state: its tree and what belongs to it.
        speakers: answer its requests, by the model's name; that of `AGENT` answers those with any other name.
    """

    state: SessionState
    speakers: Mapping[str, Speaker]
    sealed: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None
    in_flight: int = 0
    key: bytes = b""

    def speaker(self, model: object) -> Speaker:
        """Return what answers a request for a model."""
        return (self.speakers.get(model) if isinstance(model, str) else None) or self.speakers[AGENT]

    def models(self, default: str) -> list[str]:
        """Return the names of the models that are listed: the default one, and those of agents."""
        return [default, *(name for name in self.speakers if name != AGENT)]

    @property
    def turn_timeout(self) -> float:
        """Seconds that one turn may take."""
        return self.speakers[AGENT].limits.turn_timeout
