"""A web framework in a hundred lines (WSGI)."""

from webby.app import App
from webby.request import Request, Response

__all__ = ["App", "Request", "Response"]
