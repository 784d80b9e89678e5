import unittest

from bars import Histogram


class EdgesTest(unittest.TestCase):
    def test_the_largest_value(self):
        histogram = Histogram.of(range(11), bins=5)
        self.assertEqual(histogram.counts, [2, 2, 2, 2, 3])
        self.assertEqual((histogram.total, histogram.outside), (11, 0))

    def test_a_value_on_each_edge(self):
        histogram = Histogram(0, 1, 10)
        for tenth in range(10):
            self.assertEqual(histogram.bin(tenth / 10), tenth)
        self.assertEqual(histogram.bin(1), 9)

    def test_edges_that_are_shown_are_those_that_count(self):
        for low, high, bins in ((0, 0.7, 7), (-1, 2, 9), (0.1, 1.3, 12)):
            histogram = Histogram(low, high, bins)
            for index, edge in enumerate(histogram.edges[:-1]):
                self.assertEqual(histogram.bin(edge), index)

    def test_equal_values(self):
        histogram = Histogram.of([4, 4, 4], bins=3)
        self.assertEqual(histogram.total, 3)
        self.assertEqual(histogram.counts, [0, 3, 0])

    def test_outside_stays_outside(self):
        histogram = Histogram(0, 1, 3)
        self.assertIsNone(histogram.bin(1.0000001))
        self.assertIsNone(histogram.bin(-0.1))

    def test_a_quantile(self):
        self.assertEqual(Histogram.of(range(11), bins=5).quantile(1), 8)
