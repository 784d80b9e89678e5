"""A treasure hunt: each place has a note that names the next; several dependent tool calls, then an answer."""

import random

import agentrl

PLACES = ("mill", "well", "barn", "oak", "inn", "ford", "cave", "pier")


class Treasure(agentrl.Env):
    """Follow one to three notes to a chest, and say how many coins it holds."""

    max_turns = 6

    def tasks(self, split="train"):
        """Two thousand different hunts; every fifth is held out."""
        rng, hunts = random.Random(0), {}
        while len(hunts) < 2000:
            route, coins = rng.sample(PLACES, rng.randint(1, 3)), rng.randrange(10, 100)
            hunts[*route, coins] = {"route": route, "coins": coins}
        return [hunt for i, hunt in enumerate(hunts.values()) if (i % 5 == 0) == (split == "eval")]

    def reset(self, task, *, seed=None):
        """The first clue."""
        self.route, self.coins = task["route"], task["coins"]
        return f"The map begins at the {self.route[0]}."

    @agentrl.tool(quick=True)
    def look(self, place: str) -> str:
        """Look for a note or a chest at a place."""
        if place not in self.route:
            raise agentrl.ToolError("there is nothing here")
        at = self.route.index(place) + 1
        return f"A note: go to the {self.route[at]}." if at < len(self.route) else f"A chest of {self.coins} coins."

    @agentrl.reward
    def found(self, session) -> float:
        """1 for the right number of coins."""
        return float(session.answer == str(self.coins))

    def expert(self, messages):
        """Go where the last message says, and tell what the chest holds."""
        words = messages[-1].text.rstrip(".").split()
        return words[-2] if words[-1] == "coins" else self.call("look", place=words[-1])

    def demonstrate(self, messages, rng):
        """Give up at a note now and then."""
        visited = sum(message.role == "tool" for message in messages)
        gives_up = visited and rng.random() < 0.4
        return "10" if gives_up and "note" in messages[-1].text else self.expert(messages)
