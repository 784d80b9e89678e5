"""A list of things to do, in a JSON file."""
