"""Coroutines that run side by side and end together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def concurrently(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all, and return their results in order; where one fails the others are cancelled and awaited."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
