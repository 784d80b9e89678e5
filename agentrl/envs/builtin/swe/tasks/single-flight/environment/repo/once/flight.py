"""A load that one thread does and others wait for."""

from threading import Event


class Flight:
    def __init__(self):
        self._landed = Event()
        self._value = None
        self._error = None

    def run(self, function):
        """Load; the result, for whoever waits and for the caller."""
        self._value = function()
        self._landed.set()
        return self._value

    def wait(self):
        """The result of a load that somebody else does."""
        self._landed.wait()
        if self._error is not None:
            raise self._error
        return self._value
