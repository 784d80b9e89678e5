"""No tools: one question, one answer in free text."""

import agentrl


class Sums(agentrl.Env):
    """Add two numbers of one digit, most of which are never seen in training with that answer."""

    max_turns = 1

    def tasks(self, split="train"):
        """All pairs; every seventh is held out."""
        return [{"a": a, "b": b} for a in range(10) for b in range(10) if ((3 * a + b) % 7 == 0) == (split == "eval")]

    def reset(self, task, *, seed=None):
        """The sum to do."""
        self.total = task["a"] + task["b"]
        return f"{task['a']}+{task['b']}"

    @agentrl.reward
    def right(self, session) -> float:
        """1 for the sum."""
        return float(session.answer == str(self.total))

    def expert(self, messages):
        """The sum."""
        return str(self.total)
