"""Tools from elsewhere, by configuration: `tools.NAME=SOURCE` adds a source's tools to a run's environment.

A source is started once for a run, and lists its tools then; each episode opens them for itself, so that a server's
state is one episode's alone. A tool is called NAME__TOOL, and a NAME holds no double underscore, so tools of two
sources never share a name; a source of a single function gives it the section's own name.

Sources are not trusted: what they list and answer is bounded, and what fails is told apart. An answer that says that it
is an error is the model's to read; a server that died or can't be reached is an infrastructure error.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from agentrl.config import Section, ToolConfig, ToolSections
from agentrl.errors import AgentRLError, ConfigError, DeadlineExceeded, InfraError, suggest
from agentrl.overrides import validate
from agentrl.registry import Registry, subclass_of
from agentrl.tools.registry import cut
from agentrl.tools.tool import Tool

_log = logging.getLogger(__name__)
SEPARATOR = "__"
MAX_TOOLS = 200
"""The most tools of one source."""
MAX_NAME = 64
"""Characters of a name that providers' APIs take."""
MAX_SCHEMA = 50_000
"""Characters of a tool's description and parameters: they stand in every prompt."""
CLOSE_SECONDS = 10.0
_ODD = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True)
class OpenTools:
    """A source's tools in one episode.

    Attributes:
        tools: by the names that the source gives them.
        close: releases what they hold.
        has_state: whether calls have changed something that no state of the environment has.
    """

    tools: Sequence[Tool]
    close: Callable[[], Awaitable[None]] | None = None
    has_state: Callable[[], bool] = lambda: False


class ToolSource:
    """A source of tools; one instance serves a run.

    Attributes:
        settings: the class of its section of the configuration (`tools.NAME.*`).
        single: whether it has one tool, which is called as the section.
        config: the settings; subclasses annotate it with their own class.
    """

    settings: ClassVar[type[ToolConfig]] = ToolConfig
    single: ClassVar[bool] = False
    config: ToolConfig

    def __init__(self, config: ToolConfig) -> None:
        """Build a source; nothing is started."""
        self.config = config

    async def start(self) -> Sequence[Tool]:
        """Start, and list the tools by the names that they have there; called once."""
        raise NotImplementedError(f"{type(self).__name__} has no start()")

    def open(self, tools: Sequence[Tool]) -> OpenTools:
        """The tools (of those that `start` returned) for one episode; by default the same for all."""
        return OpenTools(tools)

    async def close(self) -> None:
        """Release what `start` acquired; called once, in the end."""


class _Functions(ToolSource):
    """Tools that are objects of Python's: functions, `Tool`s, LangChain's."""

    objects: ClassVar[tuple[Any, ...]] = ()

    async def start(self) -> Sequence[Tool]:
        return [_as_tool(item) for item in self.objects]


def _as_tool(item: Any) -> Tool:
    if isinstance(item, Tool):
        return item
    if _is_langchain(item):
        from agentrl.tools.sources.langchain import as_tool

        return as_tool(item)
    return Tool.of(item)


def _is_langchain(item: Any) -> bool:
    return hasattr(item, "ainvoke") and hasattr(item, "tool_call_schema")


def _accept(found: Any) -> type[ToolSource] | None:
    """A source's class; a tool or a list of tools is the source of these."""
    if subclass_of(ToolSource)(found):
        return found  # type: ignore[no-any-return]
    items = tuple(found) if isinstance(found, list | tuple) else (found,)
    fits = (isinstance(item, Tool) or _is_langchain(item) or inspect.isroutine(item) for item in items)
    if not items or not all(fits):
        return None
    return type("Functions", (_Functions,), {"objects": items, "single": not isinstance(found, list | tuple)})


SOURCES: Registry[type[ToolSource]] = Registry(
    "source of tools",
    "tools.NAME",
    "agentrl.tools",
    {"mcp": "agentrl.tools.sources.mcp:Mcp", "openapi": "agentrl.tools.sources.openapi:OpenApi"},
    accept=_accept,
    settings=ToolConfig,
    default=subclass_of(ToolSource),
)
"""A package names its sources as entry points of the group `agentrl.tools`."""


@dataclass(frozen=True)
class NamedSource:
    """A started source under its section's name; its tools have the names that the model sees, and the run's limits."""

    name: str
    source: ToolSource
    tools: Sequence[Tool]
    names: Mapping[str, str]

    def open(self) -> OpenTools:
        """The tools for one episode."""
        opened = self.source.open(self.tools)
        return replace(opened, tools=[self._limit(tool) for tool in opened.tools])

    def _limit(self, tool: Tool) -> Tool:
        config = self.source.config

        async def invoke(arguments: dict[str, Any], sandbox: Any) -> Any:
            result = tool.invoke(arguments, sandbox)
            return _bound(await result if inspect.isawaitable(result) else result, config.max_chars)

        limits = [limit for limit in (tool.timeout, config.timeout) if limit is not None]
        of_model = (*tool.model_errors, *(_MODEL_ERRORS[name] for name in config.model_errors))
        name, timeout = self.names[tool.name], min(limits, default=None)
        return replace(tool, name=name, invoke=invoke, timeout=timeout, model_errors=of_model)


_MODEL_ERRORS: Mapping[str, type[Exception]] = {
    "ConnectionError": ConnectionError,
    "TimeoutError": TimeoutError,
    "OSError": OSError,
}


class _Tools(Section):
    """The part of a configuration that `start_sources` reads."""

    tools: ToolSections


@asynccontextmanager
async def start_sources(configs: Mapping[str, Any]) -> AsyncIterator[tuple[NamedSource, ...]]:
    """The sources of a configuration's `tools`, started together, and closed in the end.

    Args:
        configs: settings by the section's name, as `RunConfig.tools` or as they are typed.

    Raises:
        UnknownName: there is no such source.
        ConfigError: it does not have these settings, can't start with them, or lists tools that can't be offered.
        DeadlineExceeded: it took longer than its `start_timeout`.
    """
    checked = validate({"tools": configs}, _Tools).tools
    sources = {name: SOURCES.find(config.name)(config) for name, config in checked.items()}
    try:
        yield tuple(await asyncio.gather(*(_start(name, source) for name, source in sources.items())))
    finally:
        await asyncio.gather(*(close_or_warn(f"tools.{name}", source.close) for name, source in sources.items()))


async def close_or_warn(what: str, close: Callable[[], Awaitable[None]]) -> None:
    """Close something; what fails then is a warning."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await close()
    except Exception as error:
        _log.warning("%s: closing it raised %s: %s", what, type(error).__name__, error)


async def _start(name: str, source: ToolSource) -> NamedSource:
    config = source.config
    where = f"tools.{name}={config.name!r}"
    try:
        async with asyncio.timeout(config.start_timeout) as limit:
            listed = await source.start()
    except AgentRLError:
        raise
    except TimeoutError as error:
        if not limit.expired():
            raise InfraError(f"{where} can't be started: {error}") from error
        words = f"{where} did not start within {config.start_timeout:g} s (tools.{name}.start_timeout)"
        raise DeadlineExceeded(words) from None
    except Exception as error:
        raise ConfigError(f"{where} can't be started: {type(error).__name__}: {error}") from error
    tools = _choose(listed, config.only, f"tools.{name}")
    names = {tool.name: name if source.single else f"{name}{SEPARATOR}{_ODD.sub('_', tool.name)}" for tool in tools}
    for tool in tools:
        _check(tool, names, where)
    return NamedSource(name, source, tools, names)


def _choose(tools: Sequence[Tool], only: Sequence[str], setting: str) -> list[Tool]:
    known = {tool.name: tool for tool in tools}
    for wanted in only:
        if wanted not in known:
            hint = suggest(wanted, known)
            raise ConfigError(
                f"{setting}.only: there is no tool {wanted!r}{hint} (tools: {', '.join(known) or 'none'})"
            )
    return [known[name] for name in only] if only else list(tools)


def _check(tool: Tool, names: Mapping[str, str], where: str) -> None:
    """Raise a ConfigError where a listed tool can't be offered."""
    name = names[tool.name]
    if len(names) > MAX_TOOLS:
        raise ConfigError(f"{where} has {len(names)} tools: at most {MAX_TOOLS} are offered; choose some by `only`")
    if list(names.values()).count(name) > 1:
        raise ConfigError(f"{where}: two of its tools would be called {name!r}; choose one by `only`")
    if len(name) > MAX_NAME:
        raise ConfigError(f"{where}: {name!r} is longer than {MAX_NAME} characters; give the section a shorter name")
    size = len(tool.description) + len(json.dumps(tool.parameters))
    if size > MAX_SCHEMA:
        raise ConfigError(
            f"{where}: the description and parameters of {tool.name!r} have {size} characters, more than {MAX_SCHEMA}; "
            "leave it out by `only`"
        )


def _bound(result: Any, limit: int) -> Any:
    """A result as text of bounded length; parts of a message stay."""
    if isinstance(result, str):
        return cut(result, limit)
    return result
