import unittest

from ring import Ring, trend


class ResizeTest(unittest.TestCase):
    def test_growing_keeps_the_order(self):
        ring = Ring(3, [1, 2, 3, 4])
        ring.resize(5)
        ring.append(5)
        self.assertEqual(list(ring), [2, 3, 4, 5])

    def test_shrinking_keeps_the_newest(self):
        ring = Ring(4, [1, 2, 3, 4, 5])
        ring.resize(2)
        self.assertEqual(list(ring), [4, 5])
        ring.append(6)
        self.assertEqual(list(ring), [5, 6])

    def test_shrinking_below_what_is_there(self):
        ring = Ring(5, [1, 2, 3])
        ring.resize(2)
        self.assertEqual(list(ring), [2, 3])

    def test_negative_positions_of_a_ring_that_is_not_full(self):
        ring = Ring(5, [1, 2, 3])
        self.assertEqual((ring[-1], ring[-3]), (3, 1))
        ring[-1] = 9
        self.assertEqual(list(ring), [1, 2, 9])
        self.assertEqual(trend(ring), 8)

    def test_an_empty_ring_has_no_positions(self):
        for index in (0, -1):
            with self.assertRaises(IndexError):
                Ring(2)[index]

    def test_resizing_to_the_same_size(self):
        ring = Ring(3, [1, 2, 3, 4])
        ring.resize(3)
        self.assertEqual(list(ring), [2, 3, 4])
