import unittest

from routes import RoadMap, shortest
from routes.shortest import describe

MAP = RoadMap("A B 1\nB C 2\nX Y 1\n")


class RoutesTest(unittest.TestCase):
    def test_a_way(self):
        self.assertEqual(shortest(MAP, "A", "C"), (3, ["A", "B", "C"]))
        self.assertEqual(describe(shortest(MAP, "C", "A")), "C - B - A (3 km)")

    def test_no_way(self):
        self.assertEqual(describe(shortest(MAP, "A", "X")), "no way")

    def test_a_closed_road(self):
        self.assertIsNone(shortest(MAP, "A", "C", avoid=[("A", "B")]))

    def test_an_unknown_place(self):
        with self.assertRaises(KeyError):
            shortest(MAP, "A", "Q")
