"""The file with the tasks."""

import json
from pathlib import Path


class Store:
    """Tasks by number, in a file that is written after each change."""

    def __init__(self, path):
        self.path = Path(path)
        data = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.tasks = data.get("tasks", [])

    def save(self):
        self.path.write_text(json.dumps({"tasks": self.tasks}, indent=1))

    def add(self, text):
        """A new task; its number, which no other task ever had."""
        number = len(self.tasks) + 1
        self.tasks.append({"number": number, "text": text, "done": False})
        self.save()
        return number

    def done(self, number):
        """Tick a task off; how many there were of that number."""
        found = [task for task in self.tasks if task["number"] == number]
        for task in found:
            task["done"] = True
        self.save()
        return len(found)

    def remove(self, number):
        """Forget a task; how many there were of that number."""
        before = len(self.tasks)
        self.tasks = [task for task in self.tasks if task["number"] != number]
        self.save()
        return before - len(self.tasks)
