import unittest

from sparse import SparseMatrix, show

A = SparseMatrix.of([[1, 2], [3, 4]])


class ZerosTest(unittest.TestCase):
    def test_a_difference_of_nothing(self):
        self.assertEqual(A - A, SparseMatrix.zeros(2, 2))
        self.assertEqual((A - A).density, 0)
        self.assertEqual((A - SparseMatrix.of([[1, 0], [0, 4]])).density, 0.5)
        self.assertEqual((A - SparseMatrix.of([[1, 2], [0, 4]])).density, 0.25)

    def test_a_product_that_cancels_out(self):
        product = SparseMatrix.of([[1, 1]]) @ SparseMatrix.of([[2], [-2]])
        self.assertEqual(product, SparseMatrix.zeros(1, 1))
        self.assertEqual(hash(product), hash(SparseMatrix.zeros(1, 1)))
        wide = SparseMatrix.of([[1, 1], [0, 3]]) @ SparseMatrix.of([[2, 0, 1, 4], [-2, 5, 0, -4]])
        self.assertEqual((show(wide), wide.density), (". 5 1 .\n-6 15 . -12", 0.625))

    def test_scaling_by_zero(self):
        self.assertEqual(A.scale(0), SparseMatrix.zeros(2, 2))

    def test_an_empty_row_on_the_right(self):
        left = SparseMatrix.of([[1, 5], [0, 1]])
        right = SparseMatrix.of([[1, 2], [0, 0]])
        self.assertEqual(left @ right, SparseMatrix.of([[1, 2], [0, 0]]))
        self.assertEqual(show(left @ right.scale(3)), "3 6\n. .")

    def test_by_its_own_transpose(self):
        b = SparseMatrix.of([[1, 0, 2], [0, 0, 0]])
        self.assertEqual(b @ b.transpose(), SparseMatrix.of([[5, 0], [0, 0]]))

    def test_the_transpose_of_zeros(self):
        self.assertEqual(SparseMatrix.zeros(2, 3).transpose().shape, (3, 2))

    def test_a_sum_changes_neither_side(self):
        left, right = SparseMatrix.of([[1]]), SparseMatrix.of([[-1]])
        self.assertEqual((left + right).density, 0)
        self.assertEqual((left[0, 0], right[0, 0]), (1, -1))
