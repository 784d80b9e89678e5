"""Tasks made by planting faults into programs, and the key of what their tests should show."""
