"""Listeners by the name of the event."""


class Bus:
    def __init__(self):
        self._listeners = {}

    def subscribe(self, event, listener):
        """Call a function whenever an event is sent; a function that ends this."""
        self._listeners[event] = (*self._listeners.get(event, ()), listener)
        return lambda: self.unsubscribe(event, listener)

    def unsubscribe(self, event, listener):
        self._listeners[event] = tuple(one for one in self._listeners.get(event, ()) if one is not listener)

    def send(self, event, *values):
        """Tell everybody who listens; how many there were."""
        listeners = self._listeners.get(event, ())
        for listener in listeners:
            listener(*values)
        return len(listeners)
