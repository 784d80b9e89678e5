import unittest

from bars import Histogram, draw
from bars.histogram import merge


class BarsTest(unittest.TestCase):
    def test_counting(self):
        histogram = Histogram(0, 10, 5)
        for value in (0, 1.9, 2, 9.9, -1, 11):
            histogram.add(value)
        self.assertEqual(histogram.counts, [2, 1, 0, 0, 1])
        self.assertEqual(histogram.outside, 2)

    def test_edges(self):
        self.assertEqual(Histogram(0, 10, 5).edges, [0, 2, 4, 6, 8, 10])

    def test_sums(self):
        one = Histogram(0, 2, 2)
        one.add(1, times=3)
        self.assertEqual(merge(one, one).counts, [0, 6])

    def test_drawing(self):
        histogram = Histogram(0, 2, 2)
        histogram.add(0.5, 2)
        self.assertEqual(draw(histogram, 4), "    0.00    2 ####\n    1.00    0")
