"""A request's inbox for its pieces, its deadline among them: a timer for each request, not for each wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agentrl.errors import DeadlineExceeded


@contextmanager
def ended_by(deadline: float | None, inbox: asyncio.Queue[Any], request_id: str) -> Iterator[None]:
    """Put a `DeadlineExceeded` behind what had come before, once the deadline has passed.

    Args:
        deadline: in seconds of `time.monotonic()`; None is none.
        inbox: the queue.
        request_id: for the error.
    """
    if deadline is None:
        yield
        return
    late = DeadlineExceeded(f"request {request_id!r} ran past its deadline")
    timer = asyncio.get_running_loop().call_later(max(0.0, deadline - time.monotonic()), inbox.put_nowait, late)
    try:
        yield
    finally:
        timer.cancel()
