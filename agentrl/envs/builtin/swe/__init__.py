"""Software engineering: an agent repairs a repository in a sandbox, and tests that it has not seen judge it."""
