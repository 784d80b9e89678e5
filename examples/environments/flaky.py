"""A tool that fails: what to try again, and what to leave alone."""

import random

import agentrl


class Flaky(agentrl.Env):
    """Fetch a record from a server that is busy at first; "gone" is final and has to be reported."""

    max_turns = 6

    def tasks(self, split="train"):
        """Records by number; every seventh is held out."""
        rng, tasks = random.Random(0), []
        for number in range(1000):
            task = {
                "number": number,
                "busy": rng.randint(0, 2),
                "gone": rng.random() < 0.2,
                "value": rng.randrange(100),
            }
            if (number % 7 == 0) == (split == "eval"):
                tasks.append(task)
        return tasks

    def reset(self, task, *, seed=None):
        """What to fetch."""
        self.task, self.tries = task, 0
        return f"Fetch {task['number']}"

    @agentrl.tool(quick=True)
    def fetch(self, number: int) -> int:
        """Fetch a record from the server."""
        self.tries += 1
        if number != self.task["number"]:
            raise agentrl.ToolError("no such record")
        if self.tries <= self.task["busy"]:
            raise agentrl.ToolError("busy")
        if self.task["gone"]:
            raise agentrl.ToolError("gone")
        return self.task["value"]

    @agentrl.reward
    def right(self, session) -> float:
        """1 for the record's value, or for telling that it is gone."""
        return float(session.answer == ("gone" if self.task["gone"] else str(self.task["value"])))

    def expert(self, messages):
        """Try again while the server is busy."""
        said = messages[-1].text
        if len(messages) == 1 or "busy" in said:
            return self.call("fetch", number=self.task["number"])
        return "gone" if "gone" in said else said

    def demonstrate(self, messages, rng):
        """Half the time, give a busy server up."""
        gives_up = rng.random() < 0.5
        return "gone" if gives_up and "busy" in messages[-1].text else self.expert(messages)
