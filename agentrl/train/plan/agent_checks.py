"""Checks of who plays whom: agents' names, the policies that play them, and which server has whose weights."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.config import MODEL, PAST, ClusterConfig, EngineConfig, EnvConfig, FleetConfig, GatewayConfig, Policies
from agentrl.config.learners import named_as_given
from agentrl.config.policies import list_players
from agentrl.envs.base import Env
from agentrl.envs.registry import make
from agentrl.errors import ConfigError, suggest
from agentrl.rollout.episodes.opponents import NEED_OTHERS, check_partner
from agentrl.sessions.renderers.registry import check_name
from agentrl.types import MAIN


def check_players(
    named: EnvConfig,
    fleets: Mapping[str, tuple[EngineConfig, FleetConfig]],
    agents: Mapping[str, str],
    policies: Policies,
    program: tuple[str, GatewayConfig, ClusterConfig] | None,
) -> None:
    """Check without loading a model who plays whom, for a dry run; `program`: see `check_agents`."""
    check_addresses(fleets)
    env = make(named.name, **named.kwargs)
    check_agents(named.name, env, agents, policies, program, trains=True)
    for name, policy in policies.items():
        with named_as_given(policies, name):
            check_name(policy.model.renderer, "model.renderer")
            if policy.name not in (MODEL, *NEED_OTHERS) and not policy.remote:
                check_partner(name, policy, env)


def check_addresses(fleets: Mapping[str, tuple[EngineConfig, FleetConfig]]) -> None:
    """Refuse a server that runs already where a policy that learns would bring its weights to another one's too."""
    places: dict[str, str] = {}
    for name, (engine, fleet) in fleets.items():
        prefix = "" if name == MAIN else f"policies.{name}."
        given = {f"{prefix}fleet.urls": url for url in fleet.urls}
        if not given and (url := getattr(engine, "url", None)) is not None:
            given = {f"{prefix}engine.url": url}
        for setting, url in given.items():
            place = url.rstrip("/")
            if (other := places.setdefault(place, setting)) != setting:
                raise ConfigError(
                    f"{setting}={url}: the server of {other} has the weights of one policy, and policies that learn "
                    "have servers of their own"
                )


def check_agents(
    name: str,
    env: Env,
    agents: Mapping[str, str],
    policies: Policies,
    program: tuple[str, GatewayConfig, ClusterConfig] | None,
    *,
    trains: bool,
) -> None:
    """Refuse policies for agents that an environment does not have, and a run that trains none.

    `name`: the environment's. `program`: the one that acts, with the settings of its gateway and of where that is.
    """
    for agent in agents if program is None else ():
        if agent not in env.agents:
            hint = suggest(agent, env.agents)
            known = ", ".join(env.agents)
            raise ConfigError(f"agents.{agent}: env={name} has no such agent{hint} (agents: {known})")
    if program is not None:
        if len(env.agents) > 1:
            raise ConfigError(f"agent={program[0]!r} is for one agent; env={name} has {', '.join(env.agents)}")
        if agents:
            _check_named(program[0], agents, policies, *program[1:])
    if trains and all(
        MAIN not in list_players(policies, agents.get(agent, MAIN))
        for agent in (*env.agents, *(agents if program else ()))
    ):
        raise ConfigError(f"policies that are not trained play all agents of env={name}: there is nothing to train")


def _check_named(
    program: str, agents: Mapping[str, str], policies: Policies, gateway: GatewayConfig, cluster: ClusterConfig
) -> None:
    """Refuse policies by which no request of a program can be answered, and gateways that have one policy."""
    forwarded = {*agents, *agents.values()} & set(gateway.forward.models)
    if odd := sorted({agent for agent in agents if "/" in agent} | forwarded):
        raise ConfigError(
            f"agents.{odd[0]}: a program's agents are named without a slash, and not as models of gateway.forward are"
        )
    for agent, name in agents.items():
        kind = MODEL if name == MAIN else policies[name].name
        if kind not in (MODEL, PAST):
            raise ConfigError(
                f"policies.{name}={kind} plays agents.{agent}, and requests of agent={program!r} are answered by "
                "models that are loaded here: set its model; another server's are asked by gateway.forward"
            )
    elsewhere = {"environments": cluster.environments, "gateways": cluster.gateways}
    if found := next((name for name, count in elsewhere.items() if count), None):
        raise ConfigError(
            f"cluster.{found}={elsewhere[found]}: the gateways of other processes answer by one policy, and "
            f"agent={program!r} has several (agents: {', '.join(agents)}): set cluster.{found}=0"
        )
