import unittest

from flow import Stats, by_window
from flow.windows import total


class MergeTest(unittest.TestCase):
    def test_different_numbers_of_samples(self):
        merged = Stats([1, 2, 3]).merge(Stats([10]))
        self.assertEqual(merged.count, 4)
        self.assertAlmostEqual(merged.mean, 4)
        self.assertAlmostEqual(merged.variance, 50 / 3)

    def test_with_nothing(self):
        for merged in (Stats([1, 3]).merge(Stats()), Stats().merge(Stats([1, 3]))):
            self.assertEqual((merged.count, merged.mean, merged.variance), (2, 2, 2))
        self.assertEqual(Stats().merge(Stats()).count, 0)

    def test_windows_taken_together(self):
        pairs = [(0, 1.0), (1, 5.0), (17, 2.0), (41, 8.0)]
        whole = total(by_window(pairs, 10))
        self.assertEqual((whole.count, whole.low, whole.high), (4, 1, 8))
        self.assertAlmostEqual(whole.variance, 10)

    def test_large_samples_close_together(self):
        self.assertAlmostEqual(Stats([1e9, 1e9 + 1, 1e9 + 2]).variance, 1)
        halves = Stats([1e9, 1e9 + 1]).merge(Stats([1e9 + 2]))
        self.assertAlmostEqual(halves.variance, 1)

    def test_any_way_to_cut_a_stream(self):
        samples = [1e6 + number * 37 % 11 for number in range(300)]
        for cut in (1, 7, 150, 299):
            merged = Stats(samples[:cut]).merge(Stats(samples[cut:]))
            self.assertAlmostEqual(merged.mean, 1000004.99000000, places=6)
            self.assertAlmostEqual(merged.variance, 10.05006689, places=6)
