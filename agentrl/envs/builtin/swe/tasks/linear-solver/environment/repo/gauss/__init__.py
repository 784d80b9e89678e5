"""Systems of linear equations."""

from gauss.eliminate import Singular, determinant, solve

__all__ = ["Singular", "determinant", "solve"]
