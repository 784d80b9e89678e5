import unittest

from gauss import Singular, determinant, solve


class GaussTest(unittest.TestCase):
    def test_two_equations(self):
        self.assertEqual(solve([[2, 1], [1, 3]], [5, 10]), [1, 3])

    def test_no_solution(self):
        with self.assertRaises(Singular):
            solve([[1, 2], [2, 4]], [1, 3])

    def test_shapes(self):
        with self.assertRaises(ValueError):
            solve([[1, 2]], [1])

    def test_determinant(self):
        self.assertAlmostEqual(determinant([[2, 1], [1, 3]]), 5)
        self.assertEqual(determinant([[1, 2], [2, 4]]), 0)
