"""A list of cables, one a line: "printer - switch1", a machine alone, or a comment after a #."""

from cables.disjoint import DisjointSets


class Networks:
    def __init__(self, text=""):
        self._sets = DisjointSets()
        self.spare = []  # cables without which everything would still be connected
        for line in text.splitlines():
            self.add(line.partition("#")[0])

    def add(self, line):
        ends = [end.strip() for end in line.split(" - ") if end.strip()]
        for end in ends:
            self._sets.add(end)
        for one, other in zip(ends, ends[1:]):
            if not self._sets.join(one, other):
                self.spare.append((one, other))

    @property
    def count(self):
        return self._sets.count

    def connected(self, one, other):
        machines = set(self._sets)
        return one in machines and other in machines and self._sets.find(one) == self._sets.find(other)

    def size(self, machine):
        """How many machines are in a machine's network."""
        return self._sets.size(machine)

    def all(self):
        """Every network as a sorted list of its machines, the largest first."""
        found = {}
        for machine in self._sets:
            found.setdefault(self._sets.find(machine), []).append(machine)
        return sorted((sorted(machines) for machines in found.values()), key=lambda m: (-len(m), m))
