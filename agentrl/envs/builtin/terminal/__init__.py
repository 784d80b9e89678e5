"""`env=terminal`: tasks for a shell, in sandboxes."""
