"""A buffer of fixed size: what is new takes the place of what is oldest."""


class Ring:
    def __init__(self, size, items=()):
        if size < 1:
            raise ValueError(f"size is {size}: it must be at least 1")
        self._slots = [None] * size
        self._next = 0  # the slot that is written next
        self._count = 0
        for item in items:
            self.append(item)

    @property
    def size(self):
        return len(self._slots)

    def __len__(self):
        return self._count

    @property
    def full(self):
        return self._count == self.size

    def append(self, item):
        self._slots[self._next] = item
        self._next = (self._next + 1) % self.size
        self._count = min(self._count + 1, self.size)

    def _slot(self, index):
        """The slot of the item at `index`, counted from the oldest, or backwards from the newest."""
        if not -self._count <= index < self._count:
            raise IndexError(f"index {index} of {self._count} items")
        return (self._next - self._count + index % self.size) % self.size

    def __getitem__(self, index):
        return self._slots[self._slot(index)]

    def __setitem__(self, index, item):
        self._slots[self._slot(index)] = item

    def __iter__(self):
        for index in range(self._count):
            yield self[index]

    def resize(self, size):
        """Change the size; where there is less room, the newest items stay."""
        if size < 1:
            raise ValueError(f"size is {size}: it must be at least 1")
        self._slots = (self._slots + [None] * size)[:size]
        self._count = min(self._count, size)
        self._next = self._count % size

    def clear(self):
        self._slots = [None] * self.size
        self._next = self._count = 0
