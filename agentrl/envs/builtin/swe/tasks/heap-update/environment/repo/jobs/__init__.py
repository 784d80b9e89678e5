"""A queue of jobs by urgency."""

from jobs.queue import JobQueue

__all__ = ["JobQueue"]
