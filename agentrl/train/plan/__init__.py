"""A run's needs before anything is started: places, memory, traffic, time, and the best layout."""
