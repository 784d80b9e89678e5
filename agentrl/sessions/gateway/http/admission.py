"""Requests in progress: those for turns, and those that are forwarded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agentrl.sessions.gateway.entries import SessionEntry
from agentrl.sessions.gateway.gateway import Gateway
from agentrl.sessions.gateway.http.api_error import ApiError


@contextmanager
def count_request(gateway: Gateway, entry: SessionEntry) -> Iterator[None]:
    """Count a request of a session as in progress meanwhile; ApiError where the limits allow no further one."""
    limits = gateway.parts.limits
    if entry.in_flight >= limits.session_in_flight:
        raise ApiError(429, "too many requests in this session", "session_busy", retry_after=1)
    if gateway.in_flight >= limits.in_flight:
        raise ApiError(429, "too many requests", "queue_full", retry_after=1)
    gateway.begun += 1
    gateway.in_flight += 1
    entry.in_flight += 1
    try:
        yield
    finally:
        gateway.in_flight -= 1
        entry.in_flight -= 1
