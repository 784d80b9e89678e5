"""A run's groups as a stream: which tasks, how far ahead, in which order, and what they came to."""
