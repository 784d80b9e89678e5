"""No expert: the reward has to be one that random text earns now and then."""

import agentrl


class Digits(agentrl.Env):
    """Answer in digits: the reward is their share of what was said."""

    max_turns = 1

    def tasks(self, split="train"):
        """A hundred questions; every fifth is held out."""
        return [{"n": n} for n in range(100) if (n % 5 == 0) == (split == "eval")]

    def reset(self, task, *, seed=None):
        """The question."""
        return f"A number like {task['n']}?"

    @agentrl.reward
    def digits(self, session) -> float:
        """The share of digits."""
        said = session.answer
        return sum(letter in "0123456789" for letter in said) / max(len(said), 1)
