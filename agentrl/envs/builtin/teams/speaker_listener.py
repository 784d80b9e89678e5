"""`env=speaker_listener`: a speaker sees a colour and says a word that means nothing yet; a listener names the colour.

Lewis's signalling game (Convention, 1969). Whichever word stands for a colour is up to the two, so neither can learn it
alone: where the speaker says any word, the best listener is right as often as a guess.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.envs.base import reward
from agentrl.envs.builtin.teams.base import ChoiceWorld
from agentrl.types import Message, Session

COLOURS = ("red", "blue", "green")
WORDS = ("zap", "mol", "kip")
HINT = 0.2
"""The probability that the demonstrator keeps to the expert's code; otherwise it says anything.

The best response to it is right in 0.47. It is as near to a half as the accidents of 512 demonstrations allow: the less
of a code there is to begin with, the more often the two end with one word for two colours, or with no code at all.
"""


class SpeakerListener(ChoiceWorld):
    """A code for colours that speaker and listener have to agree on."""

    name = "speaker_listener"
    agents = ("speaker", "listener")
    teams: Mapping[str, tuple[str, ...]] = {"pair": ("speaker", "listener")}
    simultaneous = False
    chance = 0.65

    @classmethod
    def recipe(cls, model: str) -> dict[str, Any]:
        """Those of every such world; a higher rate of imitation saturates the attention before the code is noticed."""
        settings = super().recipe(model)
        return settings | {"warm_start.lr": 1e-3} if settings else {}

    def situations(self) -> Sequence[Mapping[str, Any]]:
        return [{"colour": colour} for colour in COLOURS]

    def opening(self, agent: str) -> str:
        return f"See {self.situation['colour']}. Say a word." if agent == "speaker" else "Which colour?"

    def options(self, agent: str) -> Sequence[str]:
        return WORDS if agent == "speaker" else COLOURS

    def news(self, agent: str) -> str:
        return f"You hear {self.said['speaker'][0] or 'nothing'}." if agent == "listener" else ""

    def critic_view(self, agent: str) -> list[float]:
        """The colour and the word that was said, together: 1 for what is the case, of 15 cases."""
        heard = ("", *WORDS, None)  # nothing yet, a word, anything else
        said = "" if not self.said["speaker"] else self.said["speaker"][0] or None
        return [float((colour, word) == (self.situation["colour"], said)) for colour in COLOURS for word in heard]

    def payoffs(self) -> Mapping[str, float]:
        return {"pair": float(self.said["listener"][0] == self.situation["colour"])}

    @reward
    def understood(self, session: Session) -> Mapping[str, float]:
        """1 for both where the listener names the colour."""
        return self.payoffs() if all(self.said.values()) else {"pair": 0.0}

    def expert(self, messages: Sequence[Message]) -> str:
        if self.agent_of(messages) == "speaker":
            return WORDS[COLOURS.index(self.situation["colour"])]
        heard = self.said["speaker"][0]
        return COLOURS[WORDS.index(heard)] if heard in WORDS else COLOURS[0]

    def demonstrate(self, messages: Sequence[Message], rng: random.Random) -> str:
        """Anything, a little more often what the expert says: the best listener to that is right in under half."""
        return self.expert(messages) if rng.random() < HINT else super().demonstrate(messages, rng)
