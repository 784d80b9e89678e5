"""Where sessions are kept: one SQLite file, what asks it, checks it, and exports from it."""
