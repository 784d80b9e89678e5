"""Data sets: where they come from, their rows, splits and identity."""
