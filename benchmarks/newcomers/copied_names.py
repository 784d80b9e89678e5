"""Names that stand in the prompt or in a tool's answer, and have to be copied letter by letter."""

import random

import agentrl
from benchmarks.newcomers.free_text import held_out

SYLLABLES = ("ka", "lo", "mi", "ne", "ru", "sa", "to", "vi")


def name(rng):
    """A made-up name of two or three syllables."""
    return "".join(rng.choices(SYLLABLES, k=rng.choice((2, 3))))


class Faq(agentrl.Env):
    """Answer from a short note: who does what?"""

    max_turns = 1
    jobs = ("cooks", "drives", "paints", "sings")

    def tasks(self, split="train"):
        rng, notes = random.Random(8), []
        for _ in range(1000):
            jobs = rng.sample(self.jobs, 2)
            notes.append({"people": [[name(rng), job] for job in jobs], "asked": rng.randrange(2)})
        return held_out(notes, split)

    def reset(self, task, *, seed=None):
        self.people, self.asked = task["people"], task["asked"]
        said = ". ".join(f"{who} {does}" for who, does in self.people)
        return f"{said}. Who {self.people[self.asked][1]}?"

    @agentrl.reward
    def right(self, session) -> float:
        return float(session.answer == self.people[self.asked][0])

    def demonstrate(self, messages, rng):
        """One of the two."""
        return rng.choice(self.people)[0]


class Tickets(agentrl.Env):
    """Find out who owns a component, and assign the ticket."""

    max_turns = 3

    def tasks(self, split="train"):
        rng = random.Random(9)
        parts = ("cache", "login", "mail", "search")
        return held_out(
            [{"ticket": n, "component": rng.choice(parts), "owner": name(rng)} for n in range(1000, 1800)], split
        )

    def reset(self, task, *, seed=None):
        self.component, self.owner, self.assigned = task["component"], task["owner"], ""
        return f"Ticket {task['ticket']}: {self.component} is broken."

    @agentrl.tool
    def owner_of(self, component: str) -> str:
        """Who owns a component."""
        return self.owner if component == self.component else "nobody"

    @agentrl.tool
    def assign(self, person: str) -> str:
        """Assign the ticket to a person."""
        self.assigned = person
        self.end()
        return "assigned"

    @agentrl.reward
    def to_its_owner(self, session) -> float:
        return float(self.assigned == self.owner)

    def expert(self, messages):
        if len(messages) == 1:
            return self.call("owner_of", component=self.component)
        return self.call("assign", person=messages[-1].text)

    def demonstrate(self, messages, rng):
        if rng.random() < 0.4:
            return self.call("assign", person=name(rng))
        return self.expert(messages)


class Seats(agentrl.Env):
    """Three people sit in a row. Who sits left, in the middle, right?"""

    max_turns = 1

    def tasks(self, split="train"):
        rng = random.Random(10)
        return held_out([{"row": [name(rng) for _ in range(3)], "where": rng.randrange(3)} for _ in range(1200)], split)

    def reset(self, task, *, seed=None):
        self.row, self.where = task["row"], task["where"]
        return f"{' '.join(self.row)}: who sits {('left', 'in the middle', 'right')[self.where]}?"

    @agentrl.reward
    def right(self, session) -> float:
        return float(session.answer == self.row[self.where])

    def expert(self, messages):
        return self.row[self.where]

    def demonstrate(self, messages, rng):
        return self.expert(messages) if rng.random() < 0.2 else rng.choice(self.row)


class Password(agentrl.Env):
    """The door tells its password to whoever asks; most just guess."""

    max_turns = 4

    def tasks(self, split="train"):
        rng = random.Random(11)
        return held_out([{"door": n, "word": name(rng)} for n in range(900)], split)

    def reset(self, task, *, seed=None):
        self.word = task["word"]
        return f"You stand before door {task['door']}. Ask, or say the password."

    def step(self, message):
        if message.text == self.word:
            return agentrl.StepResult(reward=1.0, terminated=True)
        if message.text == "ask":
            return agentrl.StepResult([agentrl.Message(role="user", content=f"It is {self.word}.")], reward=0.0)
        return agentrl.StepResult([agentrl.Message(role="user", content="No.")], reward=0.0, terminated=True)

    def demonstrate(self, messages, rng):
        if len(messages) == 1:
            return "ask" if rng.random() < 0.6 else name(rng)
        return self.word if rng.random() < 0.5 else name(rng)
