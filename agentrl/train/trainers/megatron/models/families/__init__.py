"""The families that are known by name, a few lines each."""
