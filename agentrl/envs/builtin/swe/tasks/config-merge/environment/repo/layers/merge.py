"""Merging nested dictionaries."""


def merge(base, over):
    """A dictionary with the values of `over` laid over those of `base`.

    Dictionaries are merged, everything else is replaced, and None removes a key. Neither argument is changed.
    """
    result = dict(base)
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            update(result[key], value)
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = value
    return result


def update(target, values):
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            update(target[key], value)
        else:
            target[key] = value


def flatten(settings, prefix=""):
    """Pairs of a dotted name and a value, for every value that is no dictionary."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
