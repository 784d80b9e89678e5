"""Forests: packed batches of token trees, and how sessions become them."""
