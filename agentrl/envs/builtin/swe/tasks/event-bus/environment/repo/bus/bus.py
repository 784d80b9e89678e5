"""Listeners by the name of the event."""

from bisect import insort
from itertools import count


class Bus:
    def __init__(self):
        self._listeners = {}
        self._arrivals = count()

    def subscribe(self, event, listener, priority=0):
        """Call a function whenever an event is sent, those of a high priority first; a function that ends this."""
        row = (-priority, next(self._arrivals), listener)
        insort(self._listeners.setdefault(event, []), row)

        def stop():
            rows = self._listeners.get(event, [])
            if row in rows:
                rows.remove(row)

        return stop

    def unsubscribe(self, event, listener):
        """End every subscription of a listener."""
        rows = self._listeners.get(event, [])
        rows[:] = [row for row in rows if row[2] is not listener]

    def send(self, event, *values):
        """Tell everybody who listens; how many there were."""
        called = 0
        for _, _, listener in self._listeners.get(event, []):
            listener(*values)
            called += 1
        return called

    def clear(self, event=None):
        """Forget the listeners of an event, or of all."""
        if event is None:
            self._listeners.clear()
        else:
            self._listeners.pop(event, None)
