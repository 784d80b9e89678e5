"""Finding versions that go together."""

from solve.index import Index
from solve.resolver import NoSolution, resolve

__all__ = ["Index", "NoSolution", "resolve"]
