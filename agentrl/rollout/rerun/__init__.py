"""Recorded runs and sessions generated again, and where they differ."""
