"""The session store: one SQLite file, its queries, checks and exports."""
