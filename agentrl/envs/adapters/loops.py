"""Episodes of libraries that run the loop themselves: they ask a model, and go on with what it wrote.

The library's loop runs in an asyncio task of its own, and `EpisodeLoop.ask` is its model: the call waits until the
episode's agent has written the turn. So reset and step only hand messages over, and the agent may be any that there is:
an engine, an expert, an API. What the agent is sent is what a request has beyond the one before it and its answer:
everything before that was sampled or tokenised already and is not rendered again. A request that does not go on in this
way (a history that was cut, a question beside the conversation) begins a path of its own (`StepResult.fresh`); several
at once are answered one after another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from agentrl.common.concurrency import take_error
from agentrl.common.untrusted import read_json
from agentrl.errors import EnvError
from agentrl.types import Message, StepResult, ToolCall

R = TypeVar("R")
Ask = Callable[[Sequence[Message], Sequence[str]], Awaitable[Message]]
"""Given all messages so far and the names of the tools on offer, the model's turn."""
CLOSE_SECONDS = 30.0
"""Seconds that a loop which was cancelled may take to give back what it holds."""


class _Request:
    """A request for a turn, and the future that gets it."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = list(messages)
        self.answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()


class EpisodeLoop(Generic[R]):
    """The loop of one episode.

    Args:
        run: the library's loop, given its model; what it returns is the `result`.
        tools: the names of the tools that the agent was shown.
        name: what errors call the loop.
    """

    def __init__(self, run: Callable[[Ask], Awaitable[R]], tools: Sequence[str], name: str) -> None:
        self._run, self._tools, self._name = run, frozenset(tools), name
        self._known: list[Message] = []
        self._current: _Request | None = None
        self._requests: list[_Request] = []
        self._waiting: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._task: asyncio.Task[R] | None = None

    async def begin(self) -> list[Message] | None:
        """Run the loop to its first request; its messages, or None where it ended without one.

        Raises:
            EnvError: the loop can't be played turn by turn; also whatever the loop raised.
        """
        self._task = asyncio.ensure_future(self._run(self.ask))
        self._task.add_done_callback(self._note_end)
        opening = await self._next()
        return None if opening is None else opening.messages

    async def answer(self, message: Message) -> StepResult | None:
        """Give the loop the turn that it waits for; what it asks next, None at its end. Raises as `begin`."""
        if self._current is None:
            raise EnvError(f"{self._name} has asked its model nothing yet")
        self._known.append(message)
        if not self._current.answer.done():  # else the loop has given up waiting, by a deadline of its own
            self._current.answer.set_result(message)
        return await self._next()

    @property
    def result(self) -> R:
        """The loop's return value."""
        return self._running.result()

    @property
    def _running(self) -> asyncio.Task[R]:
        if self._task is None:
            raise EnvError(f"{self._name} has not begun")
        return self._task

    async def end(self, error: Exception) -> R:
        """End the loop and return its value; a turn that it waits for is an error, now and whenever it asks again.

        Raises:
            EnvError: it does not end then.
        """
        task = self._running
        if not task.done():
            self._error = self._error or error
            for request in (*([self._current] if self._current else ()), *self._requests):
                if not request.answer.done():
                    request.answer.set_exception(self._error)
            await asyncio.wait({task}, timeout=CLOSE_SECONDS)
        if not task.done():
            raise EnvError(f"{self._name} goes on for {CLOSE_SECONDS:g} s after its model has ended")
        return self.result

    async def close(self) -> None:
        """Cancel the loop where it still runs; one that ignores that gets no further turn."""
        self._error = self._error or EnvError(f"{self._name} asks its model after the episode's end")
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)

    async def ask(self, messages: Sequence[Message], tools: Sequence[str]) -> Message:
        """The loop's model: waits for the agent's turn.

        Raises:
            EnvError: this request can't be answered by the agent of the episode; `begin` or `answer` raise it as well.
        """
        if self._error is None and (unknown := sorted({*tools} - self._tools)):
            self._error = EnvError(
                f"{self._name} offers the tools {unknown} at this turn, and {sorted(self._tools)} at the beginning: "
                "allowed: those of the beginning"
            )
        if self._error is not None:
            self._wake()
            raise self._error
        request = _Request(messages)
        self._requests.append(request)
        self._wake()
        return await request.answer

    async def _next(self) -> StepResult | None:
        """The next request that is still waited for, as an answer to the agent."""
        while self._error is None:
            self._requests = [request for request in self._requests if not request.answer.done()]
            if self._requests or self._running.done():
                break
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        if self._error is not None:
            raise self._error
        if not self._requests:
            self.result  # noqa: B018 - raises what the loop raised
            return None
        self._current = self._requests.pop(0)
        messages, known = self._current.messages, len(self._known)
        goes_on = len(messages) > known and all(map(same, self._known, messages))
        self._known = list(messages)
        return StepResult(messages[known:] if goes_on else list(messages), fresh=not goes_on)

    def _note_end(self, task: asyncio.Task[R]) -> None:
        take_error(task)
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


def same(one: Message, other: Message) -> bool:
    """Return whether two messages say the same.

    Ids, outer white space, how arguments are written, and arguments that can't be read don't matter.
    """
    same = one.role == other.role and one.text.strip() == other.text.strip()
    return same and [_call(call) for call in one.tool_calls or ()] == [_call(call) for call in other.tool_calls or ()]


def _call(call: ToolCall) -> tuple[str, Any]:
    try:
        found = read_json(call.function.arguments or "{}")
    except ValueError:
        found = None
    return call.function.name, found if isinstance(found, dict) else {}
