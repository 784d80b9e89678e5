"""A page's request to change a score of an evaluation; `rollout.episodes.edits` keeps it."""

from __future__ import annotations

from typing import Annotated

from pydantic import FiniteFloat, StringConstraints

from agentrl.config.sections import Section


class ScoreChange(Section):
    """A score that somebody changes."""

    score: FiniteFloat
    was: FiniteFloat
    """The score that the page showed."""
    why: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]
    who: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]
    """A name, as they give it: who holds the viewer's key may give any."""
