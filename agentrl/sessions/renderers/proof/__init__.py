"""Proofs by trial that a format's tokens are what its model expects."""
