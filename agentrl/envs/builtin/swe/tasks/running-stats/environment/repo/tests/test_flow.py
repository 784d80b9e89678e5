import math
import unittest

from flow import Stats, by_window


class FlowTest(unittest.TestCase):
    def test_numbers(self):
        stats = Stats([2, 4, 4, 4, 5, 5, 7, 9])
        self.assertEqual((stats.count, stats.low, stats.high), (8, 2, 9))
        self.assertAlmostEqual(stats.mean, 5)
        self.assertAlmostEqual(stats.variance, 32 / 7)

    def test_too_few(self):
        self.assertTrue(math.isnan(Stats().mean))
        self.assertTrue(math.isnan(Stats([1]).variance))

    def test_windows(self):
        windows = by_window([(0, 1), (9, 3), (10, 5)], 10)
        self.assertEqual({start: stats.mean for start, stats in windows.items()}, {0: 2, 10: 5})
