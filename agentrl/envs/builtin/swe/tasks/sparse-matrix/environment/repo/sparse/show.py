"""A matrix as text."""


def show(matrix):
    """A line for each row; a dot stands for zero."""
    rows, columns = matrix.shape
    lines = []
    for row in range(rows):
        values = (matrix[row, column] for column in range(columns))
        lines.append(" ".join(f"{value:g}" if value else "." for value in values))
    return "\n".join(lines)
