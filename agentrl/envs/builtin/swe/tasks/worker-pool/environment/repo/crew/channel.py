"""A queue between threads that can be closed."""

from collections import deque
from threading import Condition


class Channel:
    def __init__(self):
        self._items = deque()
        self._closed = False
        self._changed = Condition()

    def put(self, item):
        with self._changed:
            if self._closed:
                raise RuntimeError("the channel is closed")
            self._items.append(item)
            self._changed.notify()

    def close(self):
        """No more items; whoever waits for one is told."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def __iter__(self):
        """Items until the channel is closed and empty."""
        while True:
            with self._changed:
                while not self._items and not self._closed:
                    self._changed.wait()
                if not self._items:
                    return
                item = self._items.popleft()
            yield item
