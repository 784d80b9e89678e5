"""What is easy once the matrix is triangular."""


def back_substitute(rows, right):
    """The solution of a system whose rows have zeros left of the diagonal."""
    size = len(rows)
    solution = [0.0] * size
    for index in reversed(range(size)):
        known = sum(rows[index][column] * solution[column] for column in range(index + 1, size))
        solution[index] = (right[index] - known) / rows[index][index]
    return solution
