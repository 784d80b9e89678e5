"""Sending files over HTTP, whole or in part."""

from serve.files import respond
from serve.ranges import Unsatisfiable, parse

__all__ = ["Unsatisfiable", "parse", "respond"]
