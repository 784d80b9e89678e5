"""Finding the handler of a path."""


class Route:
    """A pattern such as /users/<name>, cut into its segments."""

    def __init__(self, method, pattern, handler):
        self.method = method
        self.segments = pattern.strip("/").split("/")
        self.handler = handler

    def match(self, path):
        """The values of the placeholders, or None where the path is another one."""
        parts = path.strip("/").split("/")
        if len(parts) != len(self.segments):
            return None
        values = {}
        for segment, part in zip(self.segments, parts):
            if segment.startswith("<"):
                values[segment[1:-1]] = part
            elif segment != part:
                return None
        return values


class Routes:
    def __init__(self):
        self._routes = []

    def add(self, method, pattern, handler):
        self._routes.append(Route(method, pattern, handler))

    def find(self, method, path):
        """The handler of a request and its values; (None, {}) where there is none."""
        for route in self._routes:
            values = route.match(path)
            if values is not None and route.method == method:
                return route.handler, values
        return None, {}
