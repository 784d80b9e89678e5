"""PettingZoo's games as one kind: agents that are awaited move, and then others are.

In its AEC games one agent is awaited at a time, in its parallel ones all that are alive. Both say in their own words
who has left; here that is `ended`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

from agentrl.common.imports import load, module_of
from agentrl.envs.adapters import library
from agentrl.errors import ConfigError, unknown_name

EXTRA = "pettingzoo"
TEXT_MODES = ("ansi", "text")
"""The library's names of a rendering as text."""
Api = Literal["aec", "parallel"]


class ZooGame(Protocol):
    """A game of PettingZoo under way.

    Attributes:
        env: the library's.
        awaited: whose moves are awaited; nobody's where the game is over.
        ended: the agents that have left: `terminated` or `truncated`.
    """

    env: Any
    awaited: list[str]
    ended: dict[str, str]

    def start(self, seed: int) -> None:
        """Begin anew."""

    def seen(self, agent: str) -> tuple[Any, Mapping[str, Any]]:
        """An awaited agent's observation and info."""

    def take(self, moves: Mapping[str, Any]) -> dict[str, float]:
        """Carry out the moves of all that are awaited; what each agent has earned by them."""


class TurnGame:
    """A game of the AEC kind: agents move one after another."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.awaited: list[str] = []
        self.ended: dict[str, str] = {}

    def start(self, seed: int) -> None:
        self.ended = {}
        self.env.reset(seed=seed)
        self._dismiss()

    def seen(self, agent: str) -> tuple[Any, Mapping[str, Any]]:
        return self.env.observe(agent), self.env.infos.get(agent, {})

    def take(self, moves: Mapping[str, Any]) -> dict[str, float]:
        (action,) = moves.values()
        self.env.step(action)
        earned = {agent: float(reward) for agent, reward in self.env.rewards.items()}
        self._dismiss()  # the library forgets the rewards of those that leave
        return earned

    def _dismiss(self) -> None:
        """Let agents leave that are dead, as the library wants it: each in a turn with no action."""
        env = self.env
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            agent = env.agent_selection
            self.ended[agent] = "terminated" if env.terminations[agent] else "truncated"
            env.step(None)
        self.awaited = [env.agent_selection] if env.agents else []


class RoundGame:
    """A game of the parallel kind: all agents that are alive move at once."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.awaited: list[str] = []
        self.ended: dict[str, str] = {}
        self._seen: Mapping[str, Any] = {}
        self._infos: Mapping[str, Mapping[str, Any]] = {}

    def start(self, seed: int) -> None:
        self.ended = {}
        self._seen, self._infos = self.env.reset(seed=seed)
        self.awaited = list(self.env.agents)

    def seen(self, agent: str) -> tuple[Any, Mapping[str, Any]]:
        return self._seen[agent], self._infos.get(agent, {})

    def take(self, moves: Mapping[str, Any]) -> dict[str, float]:
        actions = {agent: moves[agent] for agent in self.awaited}
        self._seen, rewards, terminated, truncated, self._infos = self.env.step(actions)
        for agent in actions:
            if terminated.get(agent) or truncated.get(agent):
                self.ended[agent] = "terminated" if terminated.get(agent) else "truncated"
        self.awaited = list(self.env.agents)
        return {agent: float(reward) for agent, reward in rewards.items()}


@dataclass(frozen=True)
class ZooProperties:
    """Properties that all instances of a game share.

    Attributes:
        agents: all that may ever play.
        observations: the space of each one's observations.
        actions: the space of each one's actions.
        text_mode: the library's name for a rendering as text; "" where there is none.
        at_once: whether it is of the parallel kind.
    """

    agents: tuple[str, ...]
    observations: Mapping[str, Any]
    actions: Mapping[str, Any]
    text_mode: str
    at_once: bool


_described: dict[tuple[str, ...], ZooProperties] = {}


def describe(source: str, api: Api | None, options: Mapping[str, Any]) -> ZooProperties:
    """Find out what a game is like, by making one.

    Raises:
        ConfigError: there is no such game, or it does not take the options, or does not name its agents in advance.
    """
    key = source, str(api), repr(sorted(options.items()))
    if key not in _described:
        env = make(source, api, options).env
        try:
            _described[key] = _properties(source, env)
        finally:
            env.close()
    return _described[key]


def make(source: str, api: Api | None, options: Mapping[str, Any]) -> ZooGame:
    """A new game.

    Args:
        source: the library's id (classic/tictactoe-v3, or without `classic/`), a module that has `env` or
            `parallel_env` (mpe2.simple_spread_v3), or path/to/file.py:function.
        api: of which kind; None is the parallel one where there is one.
        options: of what makes it.

    Raises:
        ConfigError: there is no such game, or it does not take the options.
    """
    if ":" in source:
        maker = load(source, f"env=pettingzoo:{source}")
    else:
        maker = _of_module(source, api) if "." in source else _of_id(source, api)
    zoo = library("pettingzoo", EXTRA)
    try:
        env = maker(**options)
    except (TypeError, ImportError, AssertionError, zoo.env_registry.exceptions.FailedToImport) as error:
        raise ConfigError(f"env=pettingzoo:{source}: {error}") from error
    kind = "parallel" if _at_once(env) else "aec"
    if api not in (None, kind):
        raise ConfigError(f"env=pettingzoo:{source} env.api={api}: it makes a game of the kind {kind!r}")
    return RoundGame(env) if kind == "parallel" else TurnGame(env)


def _properties(source: str, env: Any) -> ZooProperties:
    agents = getattr(env, "possible_agents", None)
    if not agents:
        raise ConfigError(f"env=pettingzoo:{source} has no possible_agents: who plays has to be known in advance")
    modes = env.metadata.get("render_modes", ())
    return ZooProperties(
        agents=tuple(map(str, agents)),
        observations={str(agent): env.observation_space(agent) for agent in agents},
        actions={str(agent): env.action_space(agent) for agent in agents},
        text_mode=next((mode for mode in TEXT_MODES if mode in modes), ""),
        at_once=_at_once(env),
    )


def _at_once(env: Any) -> bool:
    return isinstance(env, library("pettingzoo", EXTRA).ParallelEnv)


def _of_id(source: str, api: Api | None) -> Callable[..., Any]:
    """Return what makes a game that is registered with the library."""
    zoo = library("pettingzoo", EXTRA)
    registries = {"parallel": zoo.parallel_registry, "aec": zoo.aec_registry}
    found = [
        (kind, name)
        for kind, registry in registries.items()
        for name in registry
        if source in (name, name.partition("/")[2])
    ]
    if not found:
        raise unknown_name("game of PettingZoo", source, {name for each in registries.values() for name in each})
    if wanted := [(kind, name) for kind, name in found if api in (None, kind)]:
        return partial(zoo.make, *wanted[0])
    raise ConfigError(f"env=pettingzoo:{source} env.api={api}: there is none of that kind")


def _of_module(source: str, api: Api | None) -> Callable[..., Any]:
    """Return what makes a game of another package's module, by the names that the library's own modules have."""
    module = module_of(source, f"env=pettingzoo:{source}")
    names = {"parallel": "parallel_env", "aec": "env"}
    kinds = ("parallel", "aec") if api is None else (api,)
    for kind in kinds:
        if callable(maker := getattr(module, names[kind], None)):
            found: Callable[..., Any] = maker
            return found
    raise ConfigError(f"env=pettingzoo:{source}: the module has no {' or '.join(names[kind] for kind in kinds)}")
