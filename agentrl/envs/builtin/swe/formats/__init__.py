"""Published formats of software tasks."""
