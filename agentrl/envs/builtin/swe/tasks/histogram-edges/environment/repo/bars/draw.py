"""A histogram as text."""


def draw(histogram, width=20):
    """A line for each bin: its lower edge, its count, and a bar."""
    most = max(histogram.counts) or 1
    lines = []
    for edge, count in zip(histogram.edges, histogram.counts):
        bar = "#" * round(count / most * width)
        lines.append(f"{edge:8.2f} {count:4} {bar}".rstrip())
    return "\n".join(lines)
