"""Sessions, gateways and rewards in other processes than the one that holds the engines."""
