"""Training on sessions that are read instead of generated: the run, and its loss on held-out sessions."""
