"""Several turns of free text with feedback: `step` is written by hand."""

import random

import agentrl


class Guess(agentrl.Env):
    """Find a number from 1 to 15; after each guess the answer is "higher" or "lower"."""

    max_turns = 4

    def tasks(self, split="train"):
        """A thousand rounds, each with its number; every fifth is held out."""
        rng = random.Random(0)
        rounds = [{"round": i, "number": rng.randint(1, 15)} for i in range(1000)]
        return [task for task in rounds if (task["round"] % 5 == 0) == (split == "eval")]

    def reset(self, task, *, seed=None):
        """The opening question."""
        self.number, self.round = task["number"], task["round"]
        return f"Round {self.round}. 1 to 15?"

    def step(self, message):
        """Higher, lower, or right. A wrong guess earns 0: a session without any reward would not be trained on."""
        text = message.text.strip()
        if not text.isdecimal() or len(text) > 2:
            return agentrl.StepResult([agentrl.Message(role="user", content="a number, please")], reward=0.0)
        if int(text) == self.number:
            return agentrl.StepResult(reward=1.0, terminated=True)
        word = "higher" if int(text) < self.number else "lower"
        return agentrl.StepResult([agentrl.Message(role="user", content=word)], reward=0.0)

    def expert(self, messages):
        """Halve what is left."""
        low, high = bounds(messages)
        return str((low + high) // 2)

    def demonstrate(self, messages, rng):
        """Any number that is still possible."""
        low, high = bounds(messages)
        return str(rng.randint(low, high))


def bounds(messages):
    """The least and the greatest number that the answers so far allow."""
    low, high = 1, 15
    for said, answer in zip(messages[1::2], messages[2::2], strict=False):
        if answer.text == "higher":
            low = int(said.text) + 1
        else:
            high = int(said.text) - 1
    return low, high
