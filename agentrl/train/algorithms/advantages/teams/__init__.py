"""Advantages of agents that are a team."""
