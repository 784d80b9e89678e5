"""Environments: the worlds an agent acts in."""
