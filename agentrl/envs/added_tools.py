"""A run's own tools (`tools.NAME=…`) in its environments: opened with each instance, and closed with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrl.errors import ConfigError, InvalidInput, StateUnsupported
from agentrl.tools.sources import NamedSource, OpenTools, close_or_warn, started

if TYPE_CHECKING:
    from agentrl.envs.base import Env


@dataclass
class AddedTools:
    """The tools that one instance was given, and what gives them to another one."""

    sources: Sequence[NamedSource]
    opened: Sequence[OpenTools]

    def refuse_state(self, env: Env) -> None:
        """Raise StateUnsupported where a call changed something that no state of the environment has."""
        for source, tools in zip(self.sources, self.opened, strict=True):
            if tools.has_state():
                raise StateUnsupported(
                    f"{type(env).__name__}: tools.{source.name} was called, and its server's state can't be saved"
                )

    async def close(self) -> None:
        """Close what the tools hold."""
        pairs = [(source, tools.close) for source, tools in zip(self.sources, self.opened, strict=True)]
        await asyncio.gather(
            *(close_or_warn(f"tools.{source.name}", close) for source, close in pairs if close is not None)
        )


def add_tools(env: Env, sources: Sequence[NamedSource]) -> None:
    """Give an instance the tools of sources that were started.

    Raises:
        ConfigError: the environment has a tool of that name.
    """
    opened = [source.open() for source in sources]
    for source, tools in zip(sources, opened, strict=True):
        for tool in tools.tools:
            try:
                env.tools.add(tool)
            except InvalidInput as error:
                raise ConfigError(f"tools.{source.name}: {error}, or the section another name") from None
    env.unwrapped._added_tools = AddedTools(sources, opened)


@asynccontextmanager
async def with_tools(make_env: Callable[[], Env], configs: Mapping[str, Any]) -> AsyncIterator[Callable[[], Env]]:
    """Makes the same environments with the tools of a run's `tools.*`, whose sources are closed in the end.

    Args:
        make_env: makes an environment; where there are no tools it is given back.
        configs: settings by the section's name.

    Raises:
        ConfigError: a source can't be used, or a name is taken.
        MissingExtra: a source's library is not installed.
    """
    if not configs:
        yield make_env
        return
    async with started(configs) as sources:

        def make() -> Env:
            env = make_env()
            add_tools(env, sources)
            return env

        make()  # names that are taken are found now
        yield make
