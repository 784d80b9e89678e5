"""No tools: a string task that is rewarded letter by letter."""

import random

import agentrl


class Reverse(agentrl.Env):
    """Say four to six letters backwards; the reward is the share of places that hold the right one."""

    max_turns = 1

    def tasks(self, split="train"):
        """Two thousand different words; every fifth is held out."""
        rng, words = random.Random(0), {}
        while len(words) < 2000:
            words["".join(rng.choice("abcdefgh") for _ in range(rng.randint(4, 6)))] = None
        return [{"letters": list(word)} for i, word in enumerate(words) if (i % 5 == 0) == (split == "eval")]

    def reset(self, task, *, seed=None):
        """The letters."""
        self.wanted = task["letters"][::-1]
        return " ".join(task["letters"])

    @agentrl.reward
    def places(self, session) -> float:
        """The share of places with the right letter; what is too long counts as wrong places."""
        said = session.answer.split()
        right = sum(one == other for one, other in zip(said, self.wanted, strict=False))
        return right / max(len(said), len(self.wanted))

    def expert(self, messages):
        """The letters backwards."""
        return " ".join(self.wanted)

    def demonstrate(self, messages, rng):
        """The letters backwards, one of them wrong."""
        said = list(self.wanted)
        said[rng.randrange(len(said))] = rng.choice("abcdefgh")
        return " ".join(said)
