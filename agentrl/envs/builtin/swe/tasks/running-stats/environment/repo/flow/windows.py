"""Statistics for stretches of time."""

from flow.stats import Stats


def by_window(samples, width):
    """Statistics of (time, value) pairs for each window of `width` seconds that has any, by its start."""
    windows = {}
    for time, value in samples:
        start = time // width * width
        windows.setdefault(start, Stats()).add(value)
    return dict(sorted(windows.items()))


def total(windows):
    """All windows taken together."""
    result = Stats()
    for stats in windows.values():
        result = result.merge(stats)
    return result
