"""Lists cut into pieces."""


def chunks(items, size):
    """Pieces of at most `size` items, in order."""
    items = list(items)
    return [items[start : start + size] for start in range(0, len(items), size)]
