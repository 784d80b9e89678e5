"""Jobs done by a few threads."""

from crew.pool import Failure, Pool

__all__ = ["Failure", "Pool"]
