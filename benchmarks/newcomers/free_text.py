"""No tools: the agent writes text, and the text is scored."""

import random

import agentrl

FIRST = ("ada", "ben", "cleo", "dora", "emil", "fritz", "gina", "hugo")
LAST = ("adler", "brandt", "conrad", "decker", "engel", "fuchs", "gross", "haas")
ANIMALS = ("ant", "bear", "cow", "dog", "eagle", "fox", "goat", "horse", "mouse", "whale")


def held_out(tasks, split):
    """Every fifth of the different tasks is for evaluation."""
    different = {str(task): task for task in tasks}.values()
    return [task for i, task in enumerate(different) if (i % 5 == 0) == (split == "eval")]


class Initials(agentrl.Env):
    """Write the initials of a person."""

    max_turns = 1

    def tasks(self, split="train"):
        people = [{"first": a, "last": b} for a in FIRST for b in LAST]
        random.Random(1).shuffle(people)
        return held_out(people, split)

    def reset(self, task, *, seed=None):
        self.first, self.last = task["first"], task["last"]
        return f"What are the initials of {self.first} {self.last}?"

    @agentrl.reward
    def right(self, session) -> float:
        return float(session.answer == f"{self.first[0]}{self.last[0]}")

    def expert(self, messages):
        return f"{self.first[0]}{self.last[0]}"

    def demonstrate(self, messages, rng):
        """Half of the time only one of the letters."""
        return self.expert(messages) if rng.random() < 0.5 else rng.choice((self.first[0], self.last[0]))


class Parity(agentrl.Env):
    """Say whether a number is odd or even; the demonstrator has no idea."""

    max_turns = 1

    def tasks(self, split="train"):
        numbers = random.Random(2).sample(range(100, 10000), 1500)
        return held_out([{"number": n} for n in numbers], split)

    def reset(self, task, *, seed=None):
        self.number = task["number"]
        return f"Is {self.number} odd or even?"

    @agentrl.reward
    def right(self, session) -> float:
        return float(session.answer == ("odd" if self.number % 2 else "even"))

    def demonstrate(self, messages, rng):
        return rng.choice(("odd", "even"))


class Bigger(agentrl.Env):
    """Of two animals, name the bigger one."""

    max_turns = 1
    order = ("ant", "mouse", "fox", "eagle", "dog", "goat", "bear", "horse", "cow", "whale")

    def tasks(self, split="train"):
        pairs = [{"a": a, "b": b} for a in ANIMALS for b in ANIMALS if a != b]
        random.Random(3).shuffle(pairs)
        return held_out(pairs, split)

    def reset(self, task, *, seed=None):
        self.pair = [task["a"], task["b"]]
        return f"Which one is bigger, the {self.pair[0]} or the {self.pair[1]}?"

    @agentrl.reward
    def right(self, session) -> float:
        return float(session.answer == max(self.pair, key=self.order.index))

    def demonstrate(self, messages, rng):
        return rng.choice(self.pair)


class Polite(agentrl.Env):
    """Answer a clerk: greet, say how many, say please; one third of the reward for each."""

    max_turns = 1

    def tasks(self, split="train"):
        rng = random.Random(4)
        orders = [{"n": n, "what": what} for n in range(2, 40) for what in ("tickets", "stamps", "apples", "nails")]
        rng.shuffle(orders)
        return held_out(orders, split)

    def reset(self, task, *, seed=None):
        self.n, self.what = task["n"], task["what"]
        return f"You need {self.n} {self.what}. What do you say?"

    @agentrl.reward
    def polite(self, session) -> float:
        text = session.answer or ""
        return (text.startswith("hello") + (f"{self.n} {self.what}" in text) + text.endswith("please")) / 3

    def demonstrate(self, messages, rng):
        words = [word for word in ("hello", f"{self.n} {self.what}", "please") if rng.random() < 0.6]
        return " ".join(words) or "well"
