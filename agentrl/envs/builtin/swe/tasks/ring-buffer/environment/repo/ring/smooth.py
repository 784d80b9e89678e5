"""Numbers about a ring of numbers."""


def mean(ring):
    """The average, or None of an empty ring."""
    return sum(ring) / len(ring) if len(ring) else None


def trend(ring):
    """The newest reading less the oldest."""
    return ring[-1] - ring[0] if len(ring) > 1 else 0
