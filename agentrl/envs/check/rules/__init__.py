"""The rules of `agentrl check`, by what they look at."""
