import unittest

from ring import Ring, mean, trend


class RingTest(unittest.TestCase):
    def test_the_oldest_goes(self):
        ring = Ring(3, [1, 2, 3, 4])
        self.assertEqual(list(ring), [2, 3, 4])
        self.assertTrue(ring.full)

    def test_positions_of_a_full_ring(self):
        ring = Ring(3, range(5))
        self.assertEqual((ring[0], ring[2], ring[-1], ring[-3]), (2, 4, 4, 2))
        with self.assertRaises(IndexError):
            ring[3]

    def test_numbers(self):
        ring = Ring(2, [1, 3, 5])
        self.assertEqual(mean(ring), 4)
        self.assertEqual(trend(ring), 2)
        self.assertIsNone(mean(Ring(2)))

    def test_growing_before_it_was_full(self):
        ring = Ring(2, [1])
        ring.resize(3)
        ring.append(2)
        self.assertEqual(list(ring), [1, 2])
