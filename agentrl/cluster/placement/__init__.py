"""Placement: the node and GPU of each part of a run."""
