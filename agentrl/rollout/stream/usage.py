"""A session's tokens, counted as model providers do: every turn's whole prompt, and what was generated."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.types import MAIN, Session

PROMPT, CACHED, COMPLETION = "prompt_tokens", "cached_tokens", "completion_tokens"
"""Counters of sessions whose tokens only the provider has counted."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the evaluated policy's turns.

    Attributes:
        prompt: of the prompts, each turn's whole path before it.
        completion: generated.
        cached: of the prompts, what a provider reports as read from its cache.
    """

    prompt: int = 0
    completion: int = 0
    cached: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.prompt + other.prompt, self.completion + other.completion, self.cached + other.cached)

    def cost(self, prompt_price: float | None, completion_price: float | None) -> float | None:
        """Return the cost at prices for a million tokens; None where no price is given.

        Cached tokens are counted as any other: what they cost less differs by provider.
        """
        if prompt_price is None and completion_price is None:
            return None
        return (self.prompt * (prompt_price or 0.0) + self.completion * (completion_price or 0.0)) / 1e6


def usage_of(session: Session) -> Usage:
    """The tokens of a session."""
    counters = session.counters
    if COMPLETION in counters:
        return Usage(counters.get(PROMPT, 0), counters[COMPLETION], counters.get(CACHED, 0))
    lengths: list[int] = []
    found = Usage()
    for node in session.nodes:
        before = 0 if node.parent is None else lengths[node.parent]
        lengths.append(before + len(node.token_ids))
        if node.versions and node.policy in (None, MAIN):
            opening = node.versions[0].start
            found += Usage(before + opening, len(node.token_ids) - opening)
    return found
