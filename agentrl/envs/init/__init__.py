"""`agentrl init`: a project that trains, of the files in `template` or of settings."""
