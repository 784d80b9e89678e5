"""A binary heap that knows where each of its items is, so that any of them can be changed or removed."""


class Heap:
    """Items with sort keys; smallest key first."""

    def __init__(self):
        self._rows = []  # (key, item)
        self._where = {}  # item: index into rows

    def __len__(self):
        return len(self._rows)

    def __contains__(self, item):
        return item in self._where

    def push(self, item, key):
        if item in self._where:
            raise KeyError(f"{item!r} is in the heap already")
        self._rows.append((key, item))
        self._where[item] = len(self._rows) - 1
        self._up(len(self._rows) - 1)

    def pop(self):
        """Take out the item with the smallest key."""
        if not self._rows:
            raise IndexError("the heap is empty")
        item = self._rows[0][1]
        self.remove(item)
        return item

    def remove(self, item):
        """Take out any item."""
        index = self._where.pop(item)
        last = self._rows.pop()
        if index < len(self._rows):
            self._place(index, last)
            self._down(index)

    def change(self, item, key):
        """Give an item another key."""
        index = self._where[item]
        self._rows[index] = (key, item)
        self._down(index)

    def _place(self, index, row):
        self._rows[index] = row
        self._where[row[1]] = index

    def _up(self, index):
        row = self._rows[index]
        while index and row[0] < self._rows[parent := (index - 1) // 2][0]:
            self._place(index, self._rows[parent])
            index = parent
        self._place(index, row)

    def _down(self, index):
        row = self._rows[index]
        while (child := 2 * index + 1) < len(self._rows):
            if child + 1 < len(self._rows) and self._rows[child + 1][0] < self._rows[child][0]:
                child += 1
            if not self._rows[child][0] < row[0]:
                break
            self._place(index, self._rows[child])
            index = child
        self._place(index, row)
