"""An environment of one turn in which random models differ: the share of vowels in the reply."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import agentrl


class Letters(agentrl.Env):
    """Say a word with many vowels."""

    max_turns = 1

    def tasks(self, split: str = "train") -> Iterator[dict[str, Any]]:
        for number in ("one", "two", "three", "four"):
            yield {"word": f"What is {number} and {split}?"}

    async def reset(self, task: agentrl.Task, *, seed: int | None = None) -> str:
        return str(task.data["word"])

    @agentrl.reward
    def vowels(self, session: Any) -> float:
        text = session.nodes[-1].message.text
        return sum(letter in "aeiou" for letter in text) / max(len(text), 1)
