"""A run from its configuration to its last step: the loop, what comes before it, and what goes on after a death."""
