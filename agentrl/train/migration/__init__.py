"""Data files and settings of other frameworks, made into such as run here: `agentrl convert`."""
