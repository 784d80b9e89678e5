"""Limits on how often something may be done."""

from limit.bucket import Bucket
from limit.clients import Clients

__all__ = ["Bucket", "Clients"]
