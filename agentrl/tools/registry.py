"""Running a model's tool calls: every failure that the model caused becomes a message to it, and is counted.

A mistake of a model or a tool must never stop a run, and an infrastructure failure must never look like a
model's mistake. So a call that is malformed, unknown, has wrong arguments, times out or raises becomes a message
that begins with "Error:", while InfraError, EnvError and MissingExtra pass through to the caller. What a library
raises where a connection fails or a resource is used up (`foreign_errors`) becomes an InfraError, unless the tool
declares that the model chose the address, the path, the size or the time (`@tool(model_errors=…)`).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
from collections import Counter, UserList, deque
from collections.abc import Awaitable, Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, TypeAdapter

from agentrl import faults, tracing
from agentrl.common.concurrency import take_error
from agentrl.common.foreign_errors import is_foreign, is_infrastructure, is_one_of, text_of, words
from agentrl.common.plain import plain
from agentrl.common.untrusted import safe_json
from agentrl.config.secrets import scrub
from agentrl.errors import (
    EnvError,
    InfraError,
    InvalidInput,
    MissingExtra,
    ToolArguments,
    ToolError,
    ToolTimeout,
    UnknownTool,
    suggest,
)
from agentrl.tools.effects import Effects
from agentrl.tools.tool import SandboxProvider, Tool
from agentrl.types import Message, Part, StepResult, ToolCall, parse_arguments

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 30.0
MAX_RESULT_CHARS = 100_000
"""A longer result is cut in the middle."""
UNKNOWN = "(unknown)"
"""The name in traces of what a model called and is no tool: it may be any text."""
LEFT_OUT = re.compile(r"\n\[… (\d+) characters left out …\]\n")
"""The note at the cut."""
_ADDRESS = re.compile(r"<.+ at 0x[0-9A-Fa-f]+")
"""In the text of an object that has none of its own, or holds one."""
_PARTS = TypeAdapter(list[Part])
_reported: set[tuple[str, type[BaseException]]] = set()


class ToolFailure(StrEnum):
    """The kinds of failure that are reported to the model and counted."""

    MALFORMED = "malformed"  # the model's text could not be read as a call
    UNKNOWN = "unknown"  # no tool of that name
    ARGUMENTS = "arguments"  # they don't fit the schema
    TIMEOUT = "timeout"  # it ran past its deadline
    REFUSED = "refused"  # the tool raised ToolError, whose text the model gets
    RAISED = "raised"  # the tool's own code failed


class ToolRegistry:
    """The tools of one episode.

    Attributes:
        timeout: seconds a call may take where neither the call nor the tool says less.
        calls: how many calls were run, failures included.
        failures: how many of them failed, by kind.
        silent: how many were answered with nothing.
        effects: what calls have done counts until they are over.
    """

    def __init__(
        self,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        *,
        timeout: float = DEFAULT_TIMEOUT,
        sandbox: SandboxProvider | None = None,
    ) -> None:
        self.timeout = timeout
        self.calls = 0
        self.failures: Counter[ToolFailure] = Counter()
        self.silent = 0
        self.effects = Effects()
        self._sandbox = sandbox
        self._tools: dict[str, Tool] = {}
        for item in tools:
            self.add(item)

    def add(self, item: Tool | Callable[..., Any]) -> Tool:
        """Add a tool.

        Raises:
            InvalidInput: the name is taken, or it needs a sandbox and there is no provider.
        """
        tool = item if isinstance(item, Tool) else Tool.of(item)
        if tool.name in self._tools:
            raise InvalidInput(f"two tools are called {tool.name!r}; give one another name with @tool(name=…)")
        if tool.sandbox and self._sandbox is None:
            raise InvalidInput(f"tool {tool.name!r} needs a sandbox, and this registry has no sandbox provider")
        self._tools[tool.name] = tool
        return tool

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    @property
    def names(self) -> list[str]:
        """The tools' names, in the order in which they were added."""
        return list(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def schemas(self) -> list[dict[str, Any]]:
        """The tools in OpenAI's shape."""
        return [tool.schema for tool in self._tools.values()]

    async def run(self, call: ToolCall, timeout: float | None = None) -> Message:
        """Run one call and answer it with a tool message, whatever happens.

        Args:
            call: as the parser read it; one whose `error` is set is answered with that error.
            timeout: seconds; the tool's own limit and the registry's apply as well.

        Raises:
            InfraError: the infrastructure failed (a sandbox died …); EnvError and MissingExtra pass as well.
        """
        self.calls += 1
        known = call.function.name if call.function.name in self._tools else UNKNOWN
        try:
            with tracing.span("tool", tool=known), self.effects.call(known):
                content = await self._run(call, timeout)
            self.silent += not content
        except (InfraError, EnvError, MissingExtra):
            raise
        except Exception as error:
            self._refuse_infrastructure(known, error)
            kind = _kind(call, error)
            self.failures[kind] += 1
            if kind is ToolFailure.RAISED:
                _report(call.function.name, error)
            content = f"Error: {_words(error)}"
        name = call.function.name or None
        return Message(role="tool", content=content, tool_call_id=call.id, name=name)

    def _refuse_infrastructure(self, name: str, error: Exception) -> None:
        """Raise an InfraError where a tool failed for a reason that is the infrastructure's."""
        if isinstance(error, ToolError) or not is_infrastructure(error, own_deadlines=True):
            return
        if not is_one_of(error, self._tools[name].model_errors if name in self._tools else ()):
            raise InfraError(
                f"the tool {name!r} raised {words(error)} (where what the model asks for can cause that, declare it: "
                "@agentrl.tool(model_errors=…))"
            ) from error

    async def _run(self, call: ToolCall, timeout: float | None) -> str | list[Part]:
        if call.error:
            raise ToolArguments(call.error)
        tool = self._find(call.function.name)
        arguments = tool.check(parse_arguments(call))
        seconds = min(limit for limit in (timeout, tool.timeout, self.timeout) if limit is not None)
        waits = _Waits()
        result = self._in_sandbox(tool, arguments, waits) if tool.sandbox else _begin(tool, arguments)
        if inspect.isawaitable(result):
            result = await _await_bounded(tool.name, result, await faults.async_point("tool.call", seconds), waits)
        return _content(result)

    async def _in_sandbox(self, tool: Tool, arguments: dict[str, Any], waits: _Waits) -> Any:
        assert self._sandbox is not None  # `add` has made sure
        waits.begin(sandbox := await self._sandbox())
        result = tool.invoke(arguments, sandbox)
        return await result if inspect.isawaitable(result) else result

    def _find(self, name: str) -> Tool:
        if name in self._tools:
            return self._tools[name]
        hint = suggest(name, self._tools)
        raise UnknownTool(f"there is no tool {name!r}{hint} (tools: {', '.join(self._tools) or 'none'})")


def _begin(tool: Tool, arguments: dict[str, Any]) -> Any:
    """The result of a tool without a sandbox, or an awaitable of one."""
    try:
        return tool.invoke(arguments, None)
    except BaseException as error:
        if (instead := _stand_in(error)) is None:
            raise
        raise instead from error


class _Waits:
    """The seconds that a call's commands waited for a processor, where its sandbox tells that (`Sandbox.waited`)."""

    _sandbox: Any = None

    def begin(self, sandbox: Any) -> None:
        self._sandbox = sandbox
        self._before = self._total()

    def _total(self) -> float:
        return float(getattr(self._sandbox, "waited", 0.0))

    def take(self) -> float:
        """Return what was not returned before."""
        if self._sandbox is None:
            return 0.0
        before, self._before = self._before, self._total()
        return self._before - before


async def _await_bounded(name: str, result: Awaitable[Any], seconds: float, waits: _Waits) -> Any:
    """Await a tool's result up to its deadline; a coroutine that ignores its cancellation is not awaited.

    The deadline moves on by what commands wait for a processor: such a call is the machine's fault, not the model's.
    """

    async def work() -> Any:
        try:
            return await result
        except BaseException as error:
            if (instead := _stand_in(error)) is None:
                raise
            raise instead from error

    task = asyncio.ensure_future(work())
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        while not done and (more := waits.take()) > 0.0:
            done, _ = await asyncio.wait({task}, timeout=more)
    finally:
        if not task.done():
            task.cancel()
    if not done:
        task.add_done_callback(take_error)
        raise ToolTimeout(f"{name!r} took longer than {seconds:g} s")
    if task.cancelled():
        raise RuntimeError("the tool cancelled itself")
    return task.result()


def _stand_in(error: BaseException) -> RuntimeError | None:
    """The error for what would end the event loop, or be taken for the session's cancellation; None for all else."""
    if isinstance(error, Exception) or not is_foreign(error):
        return None
    if isinstance(error, asyncio.CancelledError):
        return RuntimeError("the tool cancelled itself")
    return RuntimeError(f"the tool called exit({error.code!r})" if isinstance(error, SystemExit) else words(error))


def _kind(call: ToolCall, error: Exception) -> ToolFailure:
    if call.error:
        return ToolFailure.MALFORMED
    if isinstance(error, UnknownTool):
        return ToolFailure.UNKNOWN
    if isinstance(error, ToolArguments):
        return ToolFailure.ARGUMENTS
    if isinstance(error, ToolTimeout):
        return ToolFailure.TIMEOUT
    return ToolFailure.REFUSED if isinstance(error, ToolError) else ToolFailure.RAISED


def _words(error: Exception) -> str:
    text = scrub(text_of(error))
    return _clean(text if isinstance(error, ToolError) and text else scrub(words(error)))


def _report(name: str, error: Exception) -> None:
    """Log a warning with a traceback the first time that a tool fails in this way."""
    first = (name, type(error)) not in _reported
    _reported.add((name, type(error)))
    logger.log(logging.WARNING if first else logging.DEBUG, "tool %r raised %s", name, words(error), exc_info=error)


def _content(result: Any) -> str | list[Part]:
    """A tool's result as message content: text as it is, parts as they are, anything else as JSON."""
    if isinstance(result, str):
        return _clean(result)
    if result is None:
        return ""
    pieces = result if isinstance(result, list | tuple) else [result]
    if any(map(_is_part, pieces)):
        return _PARTS.validate_python([each if _is_part(each) else _text_beside_images(each) for each in pieces])
    if isinstance(result, BaseModel) and not isinstance(result, Message):
        return _clean(result.model_dump_json())
    try:
        return _clean(json.dumps(result, ensure_ascii=False, default=_plain))
    except TypeError:  # keys that are no text
        return _clean(json.dumps(safe_json(result, whole=True), ensure_ascii=False))


def _is_part(value: Any) -> bool:
    """Return whether a value is a part of a message, or a PIL image."""
    return isinstance(value, Part) or any(
        kind.__name__ == "Image" and kind.__module__.partition(".")[0] == "PIL" for kind in type(value).__mro__
    )


def _text_beside_images(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"the tool gave a {type(value).__name__} in a list with images: texts are allowed beside them")
    return _clean(value)


def _plain(value: Any) -> Any:
    """Return the plain form of a value that JSON lacks, else its text; ValueError where that says nothing."""
    if isinstance(value, StepResult | Message):
        raise ValueError(
            f"the tool gave a {type(value).__name__}: return the text that the model gets; self.earn(reward) and "
            "self.end() say the rest"
        )
    if _is_part(value):
        raise ValueError("the tool gave an image within other data: return it alone, or in a list with texts")
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, deque | range | UserList | KeysView | ValuesView | ItemsView):
        return list(value)
    if (found := plain(value)) is not value:
        return found
    text = str(value)
    if isinstance(value, type) or inspect.isroutine(value) or _ADDRESS.search(text):
        kind = type(value).__name__
        raise ValueError(f"the tool gave a {kind}, which has no text: return text, numbers, lists or mappings")
    return text


def _clean(text: str) -> str:
    """Text that can be stored: without lone surrogates, and bounded."""
    return cut(text, MAX_RESULT_CHARS).encode("utf-8", "replace").decode("utf-8")


def cut(text: str, limit: int) -> str:
    """The text without the middle, where it is longer than `limit` characters; `LEFT_OUT` finds the cut."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[len(text) - half :]}"
