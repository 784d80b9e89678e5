"""Users' agent functions: `async def agent(task, client)`, in an event loop beside the gateway's.

A function may wait in a way that its event loop does not see: a synchronous client, `time.sleep`, a long computation.
In the loop of the gateway that it asks, it would then wait for itself. So all functions of a process share a thread
with a loop of their own, where one that blocks delays the others and nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from agentrl.common.foreign_errors import is_foreign, words
from agentrl.errors import AgentError, ConfigError, InfraError, require_extra
from agentrl.types import Task

STOP_SECONDS = 2.0
"""Seconds for a function to end once it is cancelled; one that blocks is left alone then, and ends when it awaits."""


@dataclass(frozen=True, slots=True)
class SessionUrls:
    """The base URLs of one session's clients, and their key."""

    base_url: str
    anthropic_base_url: str
    api_key: str

    @classmethod
    def of(cls, url: str, session_id: str, api_key: str) -> SessionUrls:
        """The addresses of a session of the gateway at `url`."""
        own = f"{url}/sessions/{session_id}"
        return cls(f"{own}/v1", own, api_key)


class FunctionAgent:
    """`async def agent(task, client)`, where `client` is a plain `openai.AsyncOpenAI`.

    The clients of all sessions share one pool of connections: making a pool takes 60 ms, a client of it none.

    Args:
        function: it.
        trusted: what its client trusts where the gateway serves HTTPS; None is as usual.
    """

    def __init__(self, function: Callable[[Task, Any], Awaitable[Any]], trusted: ssl.SSLContext | None = None) -> None:
        self.function, self.trusted = function, trusted
        self._pools: dict[asyncio.AbstractEventLoop, Any] = {}

    async def run(self, task: Task, address: SessionUrls) -> None:
        """Call the function with a client of its own.

        Raises:
            AgentError: it failed.
            ConfigError: for an error in its code that every session would have: a name, an import, a setting.
            InfraError: raised by it, for what it depends on and the model has no part in.
        """
        own, beside = asyncio.get_running_loop(), _beside(os.getpid())
        result: asyncio.Future[None] = own.create_future()
        ended, calling = asyncio.Event(), list[asyncio.Task[None]]()

        def begin() -> None:
            calling.append(beside.create_task(self._call(task, address)))
            calling[0].add_done_callback(settle)

        def settle(done: asyncio.Task[None]) -> None:
            error = AgentError("it cancelled its own task") if done.cancelled() else done.exception()

            def tell() -> None:
                ended.set()
                if not result.done():
                    result.set_result(None) if error is None else result.set_exception(error)

            with contextlib.suppress(RuntimeError):  # nobody waits any more: the loop is closed
                own.call_soon_threadsafe(tell)

        beside.call_soon_threadsafe(begin)
        try:
            await result
        except asyncio.CancelledError:
            beside.call_soon_threadsafe(lambda: calling[0].cancel())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await ended.wait()
            raise

    async def _call(self, task: Task, address: SessionUrls) -> None:
        with require_extra("gateway", "openai"):
            import openai
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None or pool.is_closed:
            pool = self._pools[loop] = openai.DefaultAsyncHttpxClient(
                limits=_make_limits(), verify=self.trusted or True, trust_env=False
            )
        client = openai.AsyncOpenAI(base_url=address.base_url, api_key=address.api_key, http_client=pool)
        try:
            await self.function(task, client)
        except (ConfigError, InfraError):
            raise
        except (NameError, ImportError, SyntaxError) as error:  # an error in its code, the same in every session
            raise ConfigError(f"agent={getattr(self.function, '__name__', self.function)}: {words(error)}") from error
        except BaseException as error:  # sys.exit() too, and a cancellation of its own making
            if not is_foreign(error) and not isinstance(error, KeyboardInterrupt):  # Ctrl-C is the main thread's
                raise
            raise AgentError(words(error)) from error


@cache
def _beside(process: int) -> asyncio.AbstractEventLoop:
    """The loop in which this process's functions run; a forked process has another."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="agentrl-agents", daemon=True).start()
    return loop


def _make_limits() -> Any:
    """As many connections as there are sessions; the run's concurrency limits them."""
    import httpx2

    return httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=30.0)
