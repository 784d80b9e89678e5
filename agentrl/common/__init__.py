"""Helpers of every part, without imports of other parts: processes, threads, imports, untrusted text."""
