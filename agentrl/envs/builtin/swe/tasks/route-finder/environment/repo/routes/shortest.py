"""Dijkstra's algorithm."""

import heapq
from itertools import count


def shortest(roadmap, start, goal, avoid=()):
    """(length, places) of the shortest way, or None where there is none.

    Args:
        roadmap: the map.
        start, goal: places.
        avoid: pairs of places whose road is closed, in both directions.
    """
    for place in (start, goal):
        if place not in roadmap:
            raise KeyError(f"{place!r} is not on the map")
    closed = set(avoid)
    ties = count()
    queue = [(0.0, next(ties), start)]
    came = {}
    seen = {start}
    while queue:
        length, _, place = heapq.heappop(queue)
        for neighbour, distance in roadmap.roads(place):
            if (place, neighbour) in closed or neighbour in seen:
                continue
            seen.add(neighbour)
            came[neighbour] = place
            if neighbour == goal:
                return length + distance, way(came, start, goal)
            heapq.heappush(queue, (length + distance, next(ties), neighbour))
    return None


def way(came, start, goal):
    """The places on the way, both ends included."""
    places = [goal]
    while places[-1] != start:
        places.append(came[places[-1]])
    return places[::-1]


def describe(found):
    """A way as text."""
    if found is None:
        return "no way"
    length, places = found
    return f"{' - '.join(places)} ({length:g} km)"
