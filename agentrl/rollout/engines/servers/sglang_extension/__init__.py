"""Modules for SGLang's own import path; none of them imports agentrl."""
