"""Calls between processes of a cluster, and their connections."""
