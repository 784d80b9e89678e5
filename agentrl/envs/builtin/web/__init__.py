"""Environments on sites of ours, which are served on localhost and used with a browser: a shop, and forms."""
