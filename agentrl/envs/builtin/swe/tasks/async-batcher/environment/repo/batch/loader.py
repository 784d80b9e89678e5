"""Collects the keys of one turn of the event loop and fetches them together."""

import asyncio

from batch.chunks import chunks


class Loader:
    """Values by key.

    Args:
        fetch: an async function from a list of keys to a dictionary of their values.
        size: how many keys are fetched at once, at most.
    """

    def __init__(self, fetch, size=100):
        self._fetch = fetch
        self._size = size
        self._waiting = {}
        self._known = {}
        self._tasks = set()

    async def get(self, key):
        """The value of a key."""
        if key in self._known:
            return self._known[key]
        if not self._waiting:
            task = asyncio.ensure_future(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(future)
        return await future

    async def get_many(self, keys):
        """The values of several keys, in order."""
        return await asyncio.gather(*(self.get(key) for key in keys))

    def forget(self, key):
        self._known.pop(key, None)

    async def _run(self):
        await asyncio.sleep(0)
        waiting, self._waiting = self._waiting, {}
        keys = [key for key, futures in waiting.items() for _ in futures]
        for piece in chunks(keys, self._size):
            values = await self._fetch(piece)
            for key in piece:
                self._known[key] = values[key]
                for future in waiting[key]:
                    if not future.done():
                        future.set_result(values[key])
