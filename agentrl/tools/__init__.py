"""Tools: what an agent can call, and how calls are run."""
