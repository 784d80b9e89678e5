"""Entries by (row, column); what is not stored is zero, and zeros are not stored."""


class SparseMatrix:
    def __init__(self, rows, columns, entries=None):
        self.shape = (rows, columns)
        self._entries = {}
        for place, value in (entries or {}).items():
            self[place] = value

    @classmethod
    def zeros(cls, rows, columns):
        return cls(rows, columns)

    @classmethod
    def of(cls, lists):
        """From a list of rows."""
        width = len(lists[0]) if lists else 0
        entries = {(i, j): value for i, row in enumerate(lists) for j, value in enumerate(row)}
        return cls(len(lists), width, entries)

    def __getitem__(self, place):
        self._check(place)
        return self._entries.get(place, 0)

    def __setitem__(self, place, value):
        self._check(place)
        if value:
            self._entries[place] = value
        else:
            self._entries.pop(place, None)

    def _check(self, place):
        row, column = place
        if not (0 <= row < self.shape[0] and 0 <= column < self.shape[1]):
            raise KeyError(f"{place} in a matrix of {self.shape[0]} x {self.shape[1]}")

    def __eq__(self, other):
        return isinstance(other, SparseMatrix) and self.shape == other.shape and self._entries == other._entries

    def __hash__(self):
        return hash((self.shape, frozenset(self._entries.items())))

    @property
    def density(self):
        """The share of entries that are not zero."""
        size = self.shape[0] * self.shape[1]
        return len(self._entries) / size if size else 0.0

    def transpose(self):
        flipped = SparseMatrix(*self.shape)
        flipped._entries = {(column, row): value for (row, column), value in self._entries.items()}
        flipped.shape = self.shape[::-1] if flipped._entries else self.shape
        return flipped

    def scale(self, factor):
        result = SparseMatrix(*self.shape)
        result._entries = {place: value * factor for place, value in self._entries.items()}
        return result

    def __add__(self, other):
        if self.shape != other.shape:
            raise ValueError(f"{self.shape} and {other.shape} can't be added")
        result = SparseMatrix(*self.shape, self._entries)
        for place, value in other._entries.items():
            result._entries[place] = result._entries.get(place, 0) + value
        return result

    def __sub__(self, other):
        return self + other.scale(-1)

    def __matmul__(self, other):
        if self.shape[1] != other.shape[0]:
            raise ValueError(f"{self.shape} and {other.shape} can't be multiplied")
        by_row = {}
        for (row, column), value in other._entries.items():
            by_row.setdefault(row, []).append((column, value))
        result = SparseMatrix(self.shape[0], other.shape[1])
        for (row, middle), left in self._entries.items():
            for column, right in by_row[middle]:
                place = (row, column)
                result._entries[place] = result._entries.get(place, 0) + left * right
        return result
