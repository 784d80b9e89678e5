"""Disjoint sets, joined by size, with paths made shorter while they are walked."""


class DisjointSets:
    def __init__(self):
        self._parent = {}
        self._size = {}
        self.count = 0

    def add(self, item):
        """Put in an item as a set of its own, unless it is there."""
        if item not in self._parent:
            self._parent[item] = item
            self._size[item] = 1
            self.count += 1

    def find(self, item):
        """The item that stands for a set."""
        while self._parent[item] != item:
            self._parent[item] = self._parent[self._parent[item]]
            item = self._parent[item]
        return item

    def join(self, one, other):
        """Make one set of two; whether they were two."""
        if one == other:
            return False
        one, other = self.find(one), self.find(other)
        if self._size[one] < self._size[other]:
            one, other = other, one
        self._parent[other] = one
        self._size[one] += self._size[other]
        self.count -= 1
        return True

    def size(self, item):
        return self._size[self.find(item)]

    def __iter__(self):
        return iter(self._parent)
