"""A run's groups as a stream: their tasks, order, lead over the trainer, and results."""
