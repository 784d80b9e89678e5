"""Several tools, of which the right one has to be called, or several after each other."""

import random
from typing import Literal

import agentrl
from benchmarks.newcomers.free_text import held_out

CITIES = ("bern", "cairo", "delhi", "lima", "oslo", "paris", "quito", "rome", "sofia", "tunis")
ITEMS = ("bread", "cheese", "milk", "rice", "soap", "tea")


class Weather(agentrl.Env):
    """Umbrella or hat? One tool knows the rain, another the sun, and both are needed."""

    max_turns = 4

    def tasks(self, split="train"):
        rng = random.Random(5)
        days = [
            {"city": rng.choice(CITIES), "day": day, "rain": rng.random() < 0.5, "sun": rng.random() < 0.5}
            for day in range(600)
        ]
        return held_out(days, split)

    def reset(self, task, *, seed=None):
        self.task = task
        return f"Day {task['day']} in {task['city']}. What do I take with me?"

    @agentrl.tool
    def rain(self, city: str) -> str:
        """Does it rain there?"""
        return "rain" if self.task["rain"] else "dry"

    @agentrl.tool
    def sun(self, city: str) -> str:
        """Does the sun shine there?"""
        return "sun" if self.task["sun"] else "clouds"

    @agentrl.reward
    def right(self, session) -> float:
        return float(session.answer == self.best())

    def best(self):
        return "umbrella" if self.task["rain"] else "hat" if self.task["sun"] else "nothing"

    def expert(self, messages):
        if len(messages) == 1:
            return self.call("rain", city=self.task["city"])
        if messages[-1].text == "dry":
            return self.call("sun", city=self.task["city"])
        return self.best()

    def demonstrate(self, messages, rng):
        """Often in a hurry."""
        return rng.choice(("umbrella", "hat", "nothing")) if rng.random() < 0.3 else self.expert(messages)


class Shop(agentrl.Env):
    """Buy the cheaper one of two things."""

    max_turns = 5

    def tasks(self, split="train"):
        rng, tasks = random.Random(6), []
        for customer in range(800):
            a, b = rng.sample(ITEMS, 2)
            pa, pb = rng.sample(range(1, 10), 2)
            tasks.append({"customer": customer, "a": a, "b": b, "prices": {a: pa, b: pb}})
        return held_out(tasks, split)

    def reset(self, task, *, seed=None):
        self.a, self.b, self.prices = task["a"], task["b"], task["prices"]
        self.bought = None
        return f"Customer {task['customer']}: buy {self.a} or {self.b}, whichever is cheaper."

    @agentrl.tool
    def price(self, item: str) -> int:
        """The price of an item."""
        if item not in self.prices:
            raise agentrl.ToolError(f"there is no {item}")
        return self.prices[item]

    @agentrl.tool
    def buy(self, item: str) -> str:
        """Buy an item; the shop closes then."""
        self.bought = item
        self.end()
        return "sold"

    @agentrl.reward
    def cheaper(self, session) -> float:
        return float(self.bought == min(self.prices, key=self.prices.get))

    def demonstrate(self, messages, rng):
        """Ask for one price, perhaps for both, then buy either."""
        if len(messages) == 1:
            return self.call("price", item=self.a)
        if len(messages) == 3 and rng.random() < 0.7:
            return self.call("price", item=self.b)
        return self.call("buy", item=rng.choice((self.a, self.b)))


class Phonebook(agentrl.Env):
    """Look a number up and dial it."""

    max_turns = 3

    def tasks(self, split="train"):
        rng = random.Random(7)
        names = ("anna", "boris", "clara", "david", "erika", "felix")
        return held_out([{"name": rng.choice(names), "number": rng.randrange(100, 1000)} for _ in range(1000)], split)

    def reset(self, task, *, seed=None):
        self.name, self.number, self.reached = task["name"], task["number"], False
        return f"Call {self.name}."

    @agentrl.tool
    def look_up(self, name: str) -> int:
        """A person's number."""
        return self.number if name == self.name else 0

    @agentrl.tool
    def dial(self, number: int) -> str:
        """Dial a number."""
        self.reached = number == self.number
        self.end()
        return "it rings"

    @agentrl.reward
    def called(self, session) -> float:
        return float(self.reached)

    def expert(self, messages):
        if len(messages) == 1:
            return self.call("look_up", name=self.name)
        return self.call("dial", number=self.number)

    def demonstrate(self, messages, rng):
        """Dials what comes to mind, two times in five."""
        if len(messages) == 1 and rng.random() < 0.4:
            return self.call("dial", number=rng.randrange(100, 1000))
        return self.expert(messages)


class Heating(agentrl.Env):
    """Read the thermometer, then heat, cool or leave it."""

    max_turns = 3

    def tasks(self, split="train"):
        return held_out([{"room": room, "degrees": 10 + room * 7 % 21} for room in range(420)], split)

    def reset(self, task, *, seed=None):
        self.room, self.degrees, self.done = task["room"], task["degrees"], ""
        return f"Room {self.room} should have 18 to 22 degrees."

    @agentrl.tool
    def read(self, room: int) -> int:
        """The degrees in a room."""
        return self.degrees

    @agentrl.tool
    def set(self, mode: Literal["heat", "cool", "off"]) -> str:
        """Set the heating."""
        self.done = mode
        self.end()
        return "ok"

    @agentrl.reward
    def comfortable(self, session) -> float:
        return float(self.done == ("heat" if self.degrees < 18 else "cool" if self.degrees > 22 else "off"))

    def demonstrate(self, messages, rng):
        """Reads, and then does anything."""
        if len(messages) == 1 and rng.random() < 0.8:
            return self.call("read", room=self.room)
        return self.call("set", mode=rng.choice(("heat", "cool", "off")))
