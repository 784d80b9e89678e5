"""Slugs that no two articles share."""

from press.slug import slug


class Slugs:
    """Hands out slugs, each once."""

    def __init__(self, taken=()):
        self._taken = set(taken)
        self._counts = {}

    def add(self, title):
        """The slug of a new article: the plain one, or the first of those with -2, -3 … that is free."""
        count = self._counts[title] = self._counts.get(title, 0) + 1
        name = slug(title) if count == 1 else f"{slug(title)}-{count}"
        self._taken.add(name)
        return name

    def __contains__(self, name):
        return name in self._taken

    def __len__(self):
        return len(self._taken)
