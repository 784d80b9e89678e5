"""A warning where parser and model may not fit: tools are available, and no call ever parses."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.sessions.renderers.base import Parsed

ENOUGH = 50
"""Turns with tools on offer without a call that are suspicious."""


@dataclass(slots=True)
class CallWatch:
    """Counts what became of the tool calls of a run."""

    renderer: str
    turns: int = 0
    good: int = 0
    malformed: int = 0

    def count(self, parsed: Parsed, *, tools: bool = True) -> None:
        """Count a turn; without tools on offer it is ignored."""
        if not tools:
            return
        calls = parsed.message.tool_calls or []
        malformed = sum(call.error is not None for call in calls)
        self.add(1, len(calls) - malformed, malformed)

    def add(self, turns: int, good: int, malformed: int) -> None:
        """Count turns with tools on offer, and their calls."""
        self.turns, self.good, self.malformed = self.turns + turns, self.good + good, self.malformed + malformed

    def warning(self) -> str | None:
        """The warning, once there were enough turns; None while calls can be read."""
        if self.turns < ENOUGH or self.good:
            return None
        found = f"{self.malformed} malformed ones" if self.malformed else "nothing that looks like one"
        return (
            f"No tool call could be read in {self.turns} turns with tools on offer ({found}): the renderer "
            f"{self.renderer!r} may not fit this model. `agentrl check renderer=<model>` shows which parser does."
        )
