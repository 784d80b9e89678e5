"""The model families: each one's conversation format in a file of its own."""
