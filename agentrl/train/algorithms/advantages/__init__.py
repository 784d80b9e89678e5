"""Algorithms: the advantages that they give, each in a file named as `algo=` names it."""
