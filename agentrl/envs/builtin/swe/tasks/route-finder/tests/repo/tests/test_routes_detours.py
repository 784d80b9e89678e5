import random
import unittest
from itertools import permutations

from routes import RoadMap, shortest


def by_trying(roadmap, start, goal):
    """The length of the shortest way, found by trying all of them."""
    lengths = {place: dict(roadmap.roads(place)) for place in roadmap.places()}
    others = [place for place in lengths if place not in (start, goal)]
    best = None
    for count in range(len(others) + 1):
        for middle in permutations(others, count):
            places = [start, *middle, goal]
            legs = [lengths[a].get(b) for a, b in zip(places, places[1:])]
            if None not in legs and (best is None or sum(legs) < best):
                best = sum(legs)
    return best


class DetoursTest(unittest.TestCase):
    def test_the_map_of_the_report(self):
        roadmap = RoadMap("A B 10\nA C 2\nC B 3\nB D 1\n")
        self.assertEqual(shortest(roadmap, "A", "D"), (6, ["A", "C", "B", "D"]))

    def test_a_direct_road_that_is_longer(self):
        roadmap = RoadMap("A B 10\nA C 2\nC B 3\n")
        self.assertEqual(shortest(roadmap, "A", "B"), (5, ["A", "C", "B"]))

    def test_roads_are_closed_both_ways(self):
        roadmap = RoadMap("A B 1\nA C 2\nC B 3\n")
        self.assertEqual(shortest(roadmap, "A", "B", avoid=[("B", "A")]), (5, ["A", "C", "B"]))

    def test_from_a_place_to_itself(self):
        self.assertEqual(shortest(RoadMap("A B 1"), "A", "A"), (0, ["A"]))

    def test_random_maps(self):
        rng = random.Random(11)
        for _ in range(60):
            roadmap = RoadMap()
            for one in "ABCDEF":
                for other in "ABCDEF":
                    if one < other and rng.random() < 0.6:
                        roadmap.add(one, other, rng.randrange(1, 20))
            if "A" in roadmap and "F" in roadmap:
                found = shortest(roadmap, "A", "F")
                self.assertEqual(found and found[0], by_trying(roadmap, "A", "F"))
