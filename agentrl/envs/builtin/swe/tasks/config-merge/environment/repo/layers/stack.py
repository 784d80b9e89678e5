"""Several layers, the last of which wins."""

from layers.merge import flatten, merge


class Stack:
    def __init__(self):
        self._layers = []

    def push(self, name, settings):
        self._layers.append((name, settings))

    def pop(self):
        return self._layers.pop()[0]

    def settings(self):
        """All layers merged."""
        result = {}
        for _, layer in self._layers:
            result = merge(result, layer)
        return result

    def get(self, dotted, default=None):
        return dict(flatten(self.settings())).get(dotted, default)

    def origin(self, dotted):
        """The name of the layer that a value comes from, or None."""
        for name, layer in reversed(self._layers):
            if dotted in dict(flatten(layer)):
                return name
        return None
