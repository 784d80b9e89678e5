"""The resident runner in a sandbox: how it is built, reached and called."""
