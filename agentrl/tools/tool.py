"""`@tool`: a function or a method that a model may call.

The decorator only marks: the function stays a plain function. Its schema is computed at first use and cached with
the mark, so that constructing an environment costs nothing and a type hint may name a class that is defined further
down.

A `Tool` needs no Python function with type hints: a name, a JSON schema and a coroutine (of an MCP client, say) are
enough.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Protocol, TypeVar, overload

import docstring_parser
from pydantic import ValidationError

from agentrl.errors import InvalidInput, ToolArguments
from agentrl.tools.schema import Signature, as_function, find_source
from agentrl.tools.threads import run_in_thread

_log = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])
MARK = "__agentrl_tool__"
SANDBOX = "sandbox"
"""The parameter that gets the sandbox; it is not in the schema."""
ModelErrors = tuple[type[Exception], ...]
"""Exceptions of a tool that a model causes by what it asks for."""


class SandboxProvider(Protocol):
    """Returns the episode's sandbox, which is created at the first call."""

    def __call__(self) -> Awaitable[Any]: ...


@dataclass(frozen=True)
class ToolMark:
    """The arguments of `@tool`, and the function's signature."""

    function: Callable[..., Any]
    name: str
    timeout: float | None = None
    sandbox: bool = False
    quick: bool = False
    model_errors: ModelErrors = ()

    def __post_init__(self) -> None:
        if inspect.isgeneratorfunction(self.function) or inspect.isasyncgenfunction(self.function):
            where = getattr(self.function, "__qualname__", self.name)
            raise InvalidInput(f"the tool {where} yields, but a call has one result: return it, a list for example")

    @cached_property
    def description(self) -> str:
        """The docstring without its sections."""
        if sys.flags.optimize > 1:
            _tell_of_lost_docstrings()
        parsed = docstring_parser.parse(inspect.getdoc(find_source(self.function)) or "")
        return "\n".join(part for part in (parsed.short_description, parsed.long_description) if part)

    @cached_property
    def signature(self) -> Signature:
        """The parameters that the model fills in."""
        return self._read(())

    @cached_property
    def of_method(self) -> Signature:
        """Those of a bound method: without the first, whatever it is called."""
        return self._read(list(inspect.signature(self.function).parameters)[:1])

    def _read(self, bound: Iterable[str]) -> Signature:
        parsed = docstring_parser.parse(inspect.getdoc(find_source(self.function)) or "")
        described = {param.arg_name: param.description or "" for param in parsed.params}
        skip = {*bound, *([SANDBOX] if self.sandbox else [])}
        return Signature.of(self.function, skip=skip, descriptions=described)


@cache
def _tell_of_lost_docstrings() -> None:
    _log.warning("Python runs with -OO (PYTHONOPTIMIZE=2), which removes docstrings: tools have no descriptions")


@dataclass(frozen=True)
class Tool:
    """A tool: what the model sees of it, and what runs.

    Attributes:
        name: its name for the model.
        description: its description for the model.
        parameters: its arguments as a JSON schema.
        invoke: called with checked arguments, and the sandbox where it needs one (else None); gives the result, or an
            awaitable of it.
        check: turns the decoded JSON object into what `invoke` takes; raises ToolArguments where it does not fit.
        timeout: seconds a call may take, or None.
        sandbox: whether `invoke` needs one.
        model_errors: what is the model's fault although by its kind it would be the infrastructure's; see `tool`.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    invoke: Callable[[dict[str, Any], Any], Any]
    check: Callable[[dict[str, Any]], dict[str, Any]] = dict
    timeout: float | None = None
    sandbox: bool = False
    model_errors: ModelErrors = ()

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in OpenAI's shape."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Tool:
        """The tool of a function or bound method; one that `@tool` has not marked counts as plain `@tool`."""
        mark = mark_of(function)
        if mark is None:
            name = find_source(function).__name__
            mark = ToolMark(function, type(function).__name__ if name == "__call__" else name)
        signature = mark.of_method if inspect.ismethod(function) and mark.function is not function else mark.signature
        try:
            parameters = signature.json_schema
        except InvalidInput as error:
            raise InvalidInput(f"tool {mark.name!r}: {error}") from None

        def check(arguments: dict[str, Any]) -> dict[str, Any]:
            try:
                return signature.check(arguments)
            except ValidationError as error:
                raise ToolArguments(signature.describe(error)) from None

        def here(checked: dict[str, Any], sandbox: Any) -> Any:
            return function(**checked, **({SANDBOX: sandbox} if mark.sandbox else {}))

        async def in_thread(checked: dict[str, Any], sandbox: Any) -> Any:
            result = await run_in_thread(here, checked, sandbox)
            return await result if inspect.isawaitable(result) else result

        invoke = here if mark.quick or inspect.iscoroutinefunction(function) else in_thread
        of_model = mark.model_errors
        return cls(mark.name, mark.description, parameters, invoke, check, mark.timeout, mark.sandbox, of_model)


def mark_of(function: Any) -> ToolMark | None:
    """The mark that `@tool` set, or None."""
    mark = getattr(function, MARK, None)
    return mark if isinstance(mark, ToolMark) else None


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    timeout: float | None = None,
    sandbox: bool = False,
    quick: bool = False,
    model_errors: ModelErrors = (),
) -> Callable[[F], F]: ...
def tool(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    timeout: float | None = None,
    sandbox: bool = False,
    quick: bool = False,
    model_errors: ModelErrors = (),
) -> F | Callable[[F], F]:
    """Let a model call this function or method.

    Its schema comes from the type hints and the docstring (Google style: the first lines describe the tool,
    `Args:` its parameters). A synchronous function runs in a thread; after its timeout the model gets an error,
    but Python can't stop the thread: what must be stopped belongs in a sandbox, or in `async def`.

    Args:
        function: what to mark, when used without parentheses.
        name: its name for the model; the function's own name by default.
        timeout: seconds a call may take; the caller's limit applies as well.
        sandbox: pass the episode's sandbox as the parameter `sandbox`, which is not in the schema.
        quick: it neither blocks nor computes for long, so call it on the event loop: a thread costs up to the
            interpreter's switch interval (5 ms) in a busy process.
        model_errors: what the model causes by the address, the path, the size or the time that it asks for, such as
            `(ConnectionError, TimeoutError)`: it gets these as error messages. Without that, a connection that fails
            and a resource that is used up are the infrastructure's fault, and the session is generated again.
            ConnectionError includes the transport errors of httpx, openai, anthropic, requests and aiohttp.

    Raises:
        InvalidInput: a timeout that is not positive, a sandbox tool without that parameter, or `model_errors` that are
            no exceptions; it yields, is no function, or one without a name.
    """

    def mark(target: F) -> F:
        marked = as_function(target, "@tool")
        if timeout is not None and not timeout > 0:
            raise InvalidInput(f"@tool on {marked.__qualname__}: timeout must be positive, not {timeout!r}")
        if sandbox and SANDBOX not in inspect.signature(marked).parameters:
            raise InvalidInput(f"@tool(sandbox=True) on {marked.__qualname__}: it needs a parameter {SANDBOX!r}")
        if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in model_errors):
            raise InvalidInput(f"@tool on {marked.__qualname__}: model_errors must be classes of exceptions")
        called = name or marked.__name__
        if called == "<lambda>":
            raise InvalidInput("@tool on a lambda: give it a name, @tool(name=…)")
        setattr(marked, MARK, ToolMark(marked, called, timeout, sandbox, quick, tuple(model_errors)))
        return target

    return mark if function is None else mark(function)
