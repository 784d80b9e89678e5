"""A run's own tools (`tools.NAME=…`) in its environments: opened with each instance, and closed with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from agentrl.envs.base import Env
from agentrl.envs.context import AddedTools, context_of
from agentrl.errors import ConfigError, InvalidInput
from agentrl.tools.sources import NamedSource, started


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
    context_of(env.unwrapped).added_tools = AddedTools(sources, opened)


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
