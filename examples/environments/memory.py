"""Two tools over state that the episode builds up: store facts as they come, then look one up."""

import random

import agentrl

NAMES = ("ann", "bob", "cid", "dan", "eve", "fay")


class Memory(agentrl.Env):
    """Facts come one at a time, each when the last is stored; then one of them is asked for."""

    max_turns = 6

    def tasks(self, split="train"):
        """Two thousand different lists of facts; every fifth is held out."""
        rng, lists = random.Random(0), {}
        while len(lists) < 2000:
            facts = [(name, rng.randrange(10, 100)) for name in rng.sample(NAMES, 2)]
            asked, value = rng.choice(facts)
            lists[*facts, asked] = {"facts": facts, "asked": asked, "value": value}
        return [facts for i, facts in enumerate(lists.values()) if (i % 5 == 0) == (split == "eval")]

    def reset(self, task, *, seed=None):
        """The first fact."""
        self.task, self.store, self.told = task, {}, 0
        return self._next()

    @agentrl.tool(quick=True)
    def put(self, name: str, value: int) -> str:
        """Store a value under a name."""
        self.store[name] = value
        return self._next()

    @agentrl.tool(quick=True)
    def get(self, name: str) -> int:
        """The value that was stored under a name."""
        if name not in self.store:
            raise agentrl.ToolError(f"nothing is stored under {name}")
        return self.store[name]

    @agentrl.reward(weight=0.8)
    def right(self, session) -> float:
        """1 for the value that was asked for."""
        return float(session.answer == str(self.task["value"]))

    @agentrl.reward(weight=0.2)
    def complete(self, session) -> float:
        """The share of the facts that were stored as they were told."""
        facts = self.task["facts"]
        return sum(self.store.get(name) == value for name, value in facts) / len(facts)

    def expert(self, messages):
        """Store what is told, look up what is asked, say what was found."""
        words = messages[-1].text.split()
        if len(words) == 1:
            return words[0]
        if words[0] == "recall":
            return self.call("get", name=words[1])
        return self.call("put", name=words[0], value=int(words[2]))

    def demonstrate(self, messages, rng):
        """Skip the store now and then, and lose what was told."""
        return "10" if rng.random() < 0.2 else self.expert(messages)

    def _next(self):
        self.told += 1
        facts = self.task["facts"]
        if self.told > len(facts):
            return f"recall {self.task['asked']}"
        name, value = facts[self.told - 1]
        return f"{name} is {value}"
