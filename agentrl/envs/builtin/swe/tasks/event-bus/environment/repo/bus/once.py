"""Listeners that are called a single time."""


def once(bus, event, function):
    """Call a function for the next event only."""

    def listener(*values):
        stop()
        function(*values)

    stop = bus.subscribe(event, listener)
    return stop
