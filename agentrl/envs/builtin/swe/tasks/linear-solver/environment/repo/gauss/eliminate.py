"""Gaussian elimination."""

from gauss.triangle import back_substitute

TINY = 1e-12


class Singular(ArithmeticError):
    """There is no solution, or more than one."""


def solve(matrix, right):
    """The x with matrix x = right.

    Raises:
        Singular: there is none, or more than one.
        ValueError: the matrix is not square, or the right side has another length.
    """
    size = len(matrix)
    if any(len(row) != size for row in matrix) or len(right) != size:
        raise ValueError("a square matrix and a right side of the same size are needed")
    rows, values = list(matrix), right
    eliminate(rows, values)
    return back_substitute(rows, values)


def eliminate(rows, values):
    """Make a system triangular, in place; the sign that the row exchanges give the determinant."""
    sign = 1
    size = len(rows)
    scale = max((abs(entry) for row in rows for entry in row), default=1)
    for column in range(size):
        if abs(rows[column][column]) <= TINY * scale:
            pivot = next((r for r in range(column, size) if abs(rows[r][column]) > TINY), None)
            if pivot is None or column == 0:
                raise Singular(f"column {column} depends on those before it")
            rows[column], rows[pivot] = rows[pivot], rows[column]
        for below in range(column + 1, size):
            factor = rows[below][column] / rows[column][column]
            values[below] -= factor * values[column]
            rows[below] = [b - factor * a for a, b in zip(rows[column], rows[below])]
    return sign


def determinant(matrix):
    """The determinant, by elimination."""
    rows = [list(row) for row in matrix]
    try:
        product = eliminate(rows, [0.0] * len(rows))
    except Singular:
        return 0.0
    for index, row in enumerate(rows):
        product *= row[index]
    return product
