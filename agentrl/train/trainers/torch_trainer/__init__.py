"""`trainer=torch`: a transformers model in one process."""
