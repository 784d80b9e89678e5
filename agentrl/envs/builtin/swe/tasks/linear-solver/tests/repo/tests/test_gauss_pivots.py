import unittest

from gauss import Singular, determinant, solve


class PivotsTest(unittest.TestCase):
    def test_a_zero_in_the_corner(self):
        self.assertEqual(solve([[0, 1], [1, 0]], [2, 3]), [3, 2])

    def test_a_tiny_number_in_the_corner(self):
        x, y = solve([[1e-20, 1], [1, 1]], [1, 2])
        self.assertAlmostEqual(x, 1)
        self.assertAlmostEqual(y, 1)

    def test_a_zero_that_appears_later(self):
        solution = solve([[1, 1, 1], [1, 1, 2], [1, 2, 1]], [6, 9, 8])
        self.assertEqual([round(value, 9) for value in solution], [1, 2, 3])

    def test_the_arguments_stay(self):
        matrix, right = [[2, 1], [1, 3]], [5, 10]
        solve(matrix, right)
        self.assertEqual(matrix, [[2, 1], [1, 3]])
        self.assertEqual(right, [5, 10])

    def test_signs_of_determinants(self):
        self.assertAlmostEqual(determinant([[0, 1], [1, 0]]), -1)
        self.assertAlmostEqual(determinant([[0, 1, 0], [0, 0, 1], [1, 0, 0]]), 1)
        self.assertAlmostEqual(determinant([[1, 1, 1], [1, 1, 2], [1, 2, 1]]), -1)

    def test_a_column_of_zeros(self):
        with self.assertRaises(Singular):
            solve([[0, 1], [0, 2]], [1, 2])

    def test_many_systems(self):
        for matrix, right, expected in (
            ([[10]], [-10], [-1]),
            ([[1, 10], [7, -2]], [48, -24], [-2, 5]),
            ([[0, 7, 0], [1, -2, 7], [5, 3, 0]], [-14, 6, -31], [-5, -2, 1]),
            ([[0, 7, -2], [0, 0, 7], [10, 3, -2]], [-31, -14, -61], [-5, -5, -2]),
            ([[0, 7, 0, 1], [1, 0, 10, 0], [0, 0, -2, 8], [7, 1, -2, 0]], [-29, -1, -8, -11], [-1, -4, 0, -1]),
            ([[0, 10, 0, 3], [1, 0, 8, 1], [1, -2, 1, 7], [5, -2, 0, 0]], [-15, -2, -39, -25], [-5, 0, 1, -5]),
            (
                [[0, 5, 1, -2, 3], [0, -2, 7, 0, 3], [0, 0, 0, 5, 1], [3, 1, 3, 1, 5], [7, 3, 1, 1, 0]],
                [-4, 16, 19, 9, -31],
                [-4, -2, 0, 3, 4],
            ),
        ):
            self.assertEqual([round(value, 6) for value in solve(matrix, right)], expected)
