"""A map: places, and roads that can be used both ways."""


class RoadMap:
    def __init__(self, text=""):
        self._roads = {}
        for line in text.splitlines():
            if line.strip():
                one, other, length = line.split()
                self.add(one, other, float(length))

    def add(self, one, other, length):
        if length < 0:
            raise ValueError(f"{one} to {other}: {length} km")
        for start, end in ((one, other), (other, one)):
            roads = self._roads.setdefault(start, {})
            roads[end] = min(length, roads.get(end, length))

    def __contains__(self, place):
        return place in self._roads

    def roads(self, place):
        """Pairs of a neighbour and the length of the road to it."""
        return sorted(self._roads.get(place, {}).items())

    def places(self):
        return sorted(self._roads)
