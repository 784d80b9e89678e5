"""What processes of a cluster say to each other, and over what."""
