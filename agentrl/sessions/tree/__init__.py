"""The tree of a session's tokens: its functions and invariants, what extends it, and its form in bytes."""
