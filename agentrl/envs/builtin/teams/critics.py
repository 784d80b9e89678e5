"""Three critics who speak before the actors of a world: `env.critics=true`, after LLaMAC (arXiv:2311.13884).

In each round an explorer proposes what has not been tried and an exploiter what has paid best so far; neither hears the
other. An assessor hears both and writes the plan of which each actor is told its own part; actors may choose otherwise.
Critics see the whole situation. Their words are read as pairs of an actor and one of its choices, and nothing else of
what they write is passed on: text that is empty, too long or about something else is a plan for nobody.
"""

from __future__ import annotations

import random
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise

from agentrl.envs.builtin.teams.base import ChoiceWorld
from agentrl.types import Message, StepResult

EXPLORER, EXPLOITER, ASSESSOR = CRITICS = ("explorer", "exploiter", "assessor")
ROLES: Mapping[str, str] = {
    EXPLORER: "Propose what has not been tried",
    EXPLOITER: "Propose what has paid best so far",
    ASSESSOR: "Weigh both proposals and decide",
}
MAX_PLAN = 4000
"""Characters of a critic's text that are read; a plan for 50 actors has about 1000."""
Plan = dict[str, str]
"""The choice that each actor shall make; actors may be left out."""


def write_plan(plan: Mapping[str, str]) -> str:
    """Return a plan as critics write it; "" where it is for nobody."""
    return ", ".join(f"{actor} {choice}" for actor, choice in plan.items())


class AdvisedWorld(ChoiceWorld):
    """A world of actors, who may have the three critics; a subclass passes on what it is asked of one of these.

    Critics are of the actors' team. So a policy that is trained as a critic has the team's reward, and one that is not
    trained has none that counts.

    Args:
        actors: those who choose.
        critics: whether there are critics.

    Attributes:
        chance_with_critics: `chance` where there are critics: beside expert actors any words of a critic get all.
    """

    chance_with_critics: float

    def __init__(self, actors: Sequence[str], critics: bool) -> None:
        self.actors = tuple(actors)
        self.agents = (*CRITICS, *actors) if critics else self.actors
        self.teams: Mapping[str, tuple[str, ...]] = {"crew": self.agents}
        self.at_once = self.simultaneous
        if critics:
            self.simultaneous = False
            self.chance = self.chance_with_critics
        super().__init__()

    # ------------------------------------------------------------------ what a world writes

    @abstractmethod
    def overview(self) -> str:
        """Return what critics are told before they speak: all that is open."""

    @abstractmethod
    def best_plan(self) -> Plan:
        """Return the best choice of every actor as things are."""

    # ------------------------------------------------------------------ critics

    def opening(self, agent: str) -> str:
        choices = " or ".join(self.options(self.actors[0]))
        return f"You are {agent}. {ROLES[agent]}: for each of {', '.join(self.actors)} write {choices} behind its name."

    def options(self, agent: str) -> Sequence[str]:
        """Of a critic, the plans in which all actors choose the same; there are too many others."""
        return [write_plan(dict.fromkeys(self.actors, choice)) for choice in self.options(self.actors[0])]

    def news(self, agent: str) -> str:
        """Of a critic, all that is open, and what it needs for its role."""
        if agent == ASSESSOR:
            heard = (f"{critic.capitalize()}: {self.said[critic][-1] or 'nothing'}." for critic in CRITICS[:2])
            return f"{self.overview()}. {' '.join(heard)}"
        if agent == EXPLORER:
            tried = {actor: " ".join(dict.fromkeys(filter(None, own))) for actor, own in self._list_played().items()}
            return f"{self.overview()}. Tried: {write_plan({a: own for a, own in tried.items() if own}) or 'nothing'}."
        return f"{self.overview()}. Best: {write_plan(self._find_best_round()) or 'nothing'}."

    def advice(self, actor: str) -> str:
        """Return the assessor's choice for an actor, in words; "" where there is no assessor."""
        if ASSESSOR not in self.said:
            return ""
        spoken = self.said[ASSESSOR]
        return f"Assessor: {self._read_plan(spoken[-1]).get(actor, 'nothing') if spoken else 'nothing'}."

    def read(self, agent: str, text: str) -> str:
        return write_plan(self._read_plan(text)) if agent in CRITICS else super().read(agent, text)

    def _read_plan(self, text: str) -> Plan:
        """Return the choices that stand behind the names of actors, the last one of each."""
        found = dict(pairwise(re.findall(r"\w+", text[:MAX_PLAN].casefold())))
        return {actor: found[actor] for actor in self.actors if found.get(actor) in self.options(actor)}

    # ------------------------------------------------------------------ rounds

    def step(self, message: Message) -> StepResult:
        """Answer as every world; but actors who move at once do so when the assessor has spoken."""
        result = super().step(message)
        follows = result.next if self.at_once and not self.simultaneous else None
        if follows not in self.actors:
            return result
        if follows != self.actors[0]:  # the others' turns are under way
            return StepResult()
        told = {other: news for actor in self.actors for other, news in self.list_told(actor).items()}
        return StepResult(others=told, next=self.actors)

    def _list_played(self) -> dict[str, list[str]]:
        """Each actor's choices in the rounds that are over."""
        over = min(len(self.said[actor]) for actor in self.actors)
        return {actor: self.said[actor][:over] for actor in self.actors}

    def _find_best_round(self) -> Plan:
        """Return what was chosen in the round that paid most, the first of equals; nothing where none has paid."""
        said, played = self.said, self._list_played()
        over = len(played[self.actors[0]])
        paid = []
        for turn in range(over + 1):
            self.said = {agent: played.get(agent, said[agent])[:turn] for agent in self.agents}
            paid.append(sum(self.payoffs().values()))
        self.said = said
        gains = [after - before for before, after in pairwise(paid)]
        if not gains or max(gains) <= 0:
            return {}
        best = gains.index(max(gains))
        return {actor: own[best] for actor, own in played.items() if own[best]}

    # ------------------------------------------------------------------ scripts

    def expert(self, messages: Sequence[Message]) -> str:
        """The best choices; the explorer avoids what was tried, the exploiter repeats the round that paid most."""
        agent, best = self.agent_of(messages), self.best_plan()
        if agent == EXPLORER:
            played = self._list_played()
            for actor in self.actors:
                untried = (each for each in (best[actor], *self.options(actor)) if each not in played[actor])
                best[actor] = next(untried, best[actor])
        if agent == EXPLOITER:
            best = self._find_best_round() or best
        return write_plan(best) if agent in CRITICS else best[agent]

    def demonstrate(self, messages: Sequence[Message], rng: random.Random) -> str:
        """Any choice; of a critic, any plan."""
        if self.agent_of(messages) not in CRITICS:
            return super().demonstrate(messages, rng)
        return write_plan({actor: rng.choice(self.options(actor)) for actor in self.actors})
