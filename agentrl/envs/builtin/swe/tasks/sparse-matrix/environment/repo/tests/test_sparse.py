import unittest

from sparse import SparseMatrix, show

A = SparseMatrix.of([[1, 2], [3, 4]])


class SparseTest(unittest.TestCase):
    def test_entries(self):
        self.assertEqual(A[1, 0], 3)
        with self.assertRaises(KeyError):
            A[2, 0]

    def test_sums(self):
        self.assertEqual(A + A, SparseMatrix.of([[2, 4], [6, 8]]))

    def test_products(self):
        self.assertEqual(A @ A, SparseMatrix.of([[7, 10], [15, 22]]))
        with self.assertRaises(ValueError):
            A @ SparseMatrix.of([[1, 2, 3]])

    def test_transposing(self):
        self.assertEqual(show(SparseMatrix.of([[1, 0, 2]]).transpose()), "1\n.\n2")

    def test_density(self):
        self.assertEqual(SparseMatrix.of([[0, 1], [0, 0]]).density, 0.25)
