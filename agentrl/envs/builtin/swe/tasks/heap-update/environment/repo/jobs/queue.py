"""Jobs by urgency: a small number is urgent; among equals, who came first goes first."""

from itertools import count

from jobs.heap import Heap


class JobQueue:
    def __init__(self):
        self._heap = Heap()
        self._arrivals = count()
        self._arrival = {}

    def add(self, name, priority):
        self._heap.push(name, (priority, next(self._arrivals)))

    def cancel(self, name):
        """Forget a job; whether there was one."""
        if name not in self._heap:
            return False
        self._heap.remove(name)
        return True

    def reprioritise(self, name, priority):
        """Change a job's urgency; it queues up behind its new equals."""
        self._heap.change(name, (priority, next(self._arrivals)))

    def next(self):
        """The most urgent job, or None."""
        return self._heap.pop() if len(self._heap) else None

    def drain(self):
        """All jobs, most urgent first."""
        while (name := self.next()) is not None:
            yield name
