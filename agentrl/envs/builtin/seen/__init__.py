"""Worlds that are seen: `shapes`, `grid_camera`. Their pictures are drawn when they are shown, from the task's data."""
