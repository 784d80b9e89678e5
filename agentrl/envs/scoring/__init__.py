"""agentrl's own rewards by name: answers, shapes of texts, judges, and rewards of whole groups."""
