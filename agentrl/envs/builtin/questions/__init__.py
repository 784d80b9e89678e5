"""Question sets in their published formats: `env=questions`."""
