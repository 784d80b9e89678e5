"""An environment as TRL's `environment_factory` takes it; nothing of agentrl.

agentrl train env=trl:word_game.py:WordGame env.path=rows.jsonl
"""

from __future__ import annotations

from typing import Any


class WordGame:
    """Spell the row's label, character by character."""

    def __init__(self) -> None:
        self.wanted, self.spelled = "", ""

    def reset(self, label: str, **kwargs: Any) -> str:
        """Begin with a row."""
        self.wanted, self.spelled = label, ""
        return " Spell the answer with the tool."

    def spell(self, character: str) -> str:
        """Add a character.

        Args:
            character: one character.
        """
        if len(character) != 1:
            raise ValueError("give one character")
        self.spelled += character
        return self.spelled

    def get_reward(self) -> float:
        """1 where the whole label was spelled."""
        return float(self.spelled == self.wanted)
