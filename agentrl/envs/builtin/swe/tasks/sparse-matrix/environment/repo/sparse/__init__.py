"""Matrices that are mostly zero."""

from sparse.matrix import SparseMatrix
from sparse.show import show

__all__ = ["SparseMatrix", "show"]
