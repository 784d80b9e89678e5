"""Which part of a run goes to which node and GPU."""
