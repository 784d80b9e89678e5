"""Engines over inference servers: SGLang, vLLM, and what they share."""
