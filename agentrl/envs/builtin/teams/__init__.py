"""Worlds in which several learners matter, each with a known optimum (`optimum`): teams, a zero-sum game, a debate."""
