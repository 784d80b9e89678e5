"""Sandboxes in containers of a Docker daemon."""
