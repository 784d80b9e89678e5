"""The display of a run while it runs, and at its end."""
