"""A cache whose values are loaded by one thread each."""

from threading import Lock

from once.flight import Flight


class OnceCache:
    """Values by key.

    Args:
        load: makes the value of a key.
    """

    def __init__(self, load):
        self._load = load
        self._lock = Lock()
        self._values = {}
        self._flights = {}
        self.loads = 0

    def get(self, key):
        """The value of a key, loaded at most once at a time."""
        with self._lock:
            if self._values.get(key) is not None:
                return self._values[key]
            flight = self._flights.get(key)
            mine = flight is None
            if mine:
                flight = self._flights[key] = Flight()
                self.loads += 1
        if not mine:
            return flight.wait()
        value = flight.run(lambda: self._load(key))
        with self._lock:
            self._values[key] = value
            del self._flights[key]
        return value

    def forget(self, key):
        """Drop a value; whether there was one."""
        with self._lock:
            return self._values.pop(key, self) is not self
