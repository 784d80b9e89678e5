"""What a run shows while it runs, and when it ends."""
