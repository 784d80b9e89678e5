"""README's environment: a question that a tool answers, and a demonstrator who mostly forgets to ask."""

import agentrl


class Oracle(agentrl.Env):
    """What does the oracle make of a number? Only its tool knows."""

    def tasks(self, split="train"):
        """A thousand numbers; every seventh is held out."""
        return [{"n": n} for n in range(1000) if (n % 7 == 0) == (split == "eval")]

    def reset(self, task, *, seed=None):
        """The question."""
        self.n = task["n"]
        return f"What does the oracle make of {self.n}?"

    @agentrl.tool
    def ask(self, n: int) -> int:
        """Ask the oracle."""
        return n * 37 % 101

    @agentrl.reward
    def right(self, session) -> float:
        """1 for the oracle's own answer."""
        return float(session.answer == str(self.ask(self.n)))

    def demonstrate(self, messages):
        """A beginner: asks about five numbers in eleven, and for the others says the question again."""
        return messages[-1].text if messages[1:] or self.n % 11 > 4 else self.call("ask", n=self.n)
