"""Instructions whose following is checked by code, in IFEval's format: `env=instructions`."""
