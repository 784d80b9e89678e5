"""Sandboxes on another machine, over `agentrl sandbox serve`."""
