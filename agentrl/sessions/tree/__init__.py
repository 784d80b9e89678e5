"""The tree of a session's tokens: functions, invariants, conversations, and its encoding."""
