"""`agentrl serve-training`: a training server that other people's loops drive, over the wire of the `tinker` SDK."""
