"""The fields of a query, in order, any of them several times."""

from query.codec import decode, encode


class Fields:
    """An ordered list of names and values with a dictionary's manners."""

    def __init__(self, pairs=()):
        self.pairs = list(pairs)

    def get(self, name, default=None):
        """The last value of a name."""
        return next((value for key, value in reversed(self.pairs) if key == name), default)

    def all(self, name):
        """Every value of a name, in order."""
        return [value for key, value in self.pairs if key == name]

    def replace(self, name, value):
        """A copy in which a name has this one value, at the end."""
        return Fields([pair for pair in self.pairs if pair[0] != name] + [(name, value)])

    def __len__(self):
        return len(self.pairs)

    def __str__(self):
        return "&".join(f"{encode(name)}={encode(value)}" for name, value in self.pairs)


def parse(text):
    """The fields of a query string, with or without its question mark."""
    text = text.removeprefix("?")
    pairs = []
    for piece in decode(text).split("&"):
        if piece:
            name, _, value = piece.partition("=")
            pairs.append((name, value))
    return Fields(pairs)
