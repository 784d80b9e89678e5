"""A fleet: several engines behind the interface of one, and the publisher that brings weights to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from agentrl import cluster
from agentrl.common import cores
from agentrl.config import EngineConfig, FleetConfig, WeightsConfig
from agentrl.rollout.engines import ENGINES, make_engine
from agentrl.rollout.engines.managed import as_managed
from agentrl.rollout.engines.servers.options import platform
from agentrl.rollout.engines.servers.placed_server import on_nodes
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.rollout.weights import is_direct, make_publisher
from agentrl.types import Engine

__all__ = [
    *("asleep", "count_beside", "divide_cores", "elastic", "has_publisher", "make_engines", "require_attached"),
    "wait_until_started",
]


def make_engines(
    engine: EngineConfig, fleet: FleetConfig, weights: WeightsConfig, base: Path, beside: int = 0
) -> Engine:
    """Return a policy's engine: one engine in this process as it is, anything else as a fleet.

    A server is put into a fleet even where it is alone: it is watched there, and started anew if it dies. For `beside`,
    see `divide_cores`.

    Raises:
        ConfigError: engines are to give memory back that can't.
    """
    plugin = ENGINES.find(engine.name)
    if isinstance(engine, ServerConfig):
        engine = on_nodes(engine)
    configs = [
        plugin.sleeping(config) if number < fleet.shared else config
        for number, config in enumerate(divide_cores(engine, fleet, base, beside))
    ]
    if not has_publisher(engine, fleet, weights):
        return make_engine(configs[0], base)
    from agentrl.rollout.fleet.fleet import Fleet

    makers = [lambda config=config: make_engine(config, base) for config in configs]
    return Fleet(makers, make_publisher(weights, base, engine, plugin.ranks(engine)), fleet)


def has_publisher(engine: EngineConfig, fleet: FleetConfig, weights: WeightsConfig) -> bool:
    """Return whether engines get their weights from a publisher; a single one in this process gets them as they are."""
    return not (ENGINES.find(engine.name).in_process(engine) and fleet.engines == 1 and is_direct(weights, engine))


def count_served(engine: EngineConfig, fleet: FleetConfig) -> int:
    """Return the number of processes that a policy's servers compute in on this machine's cores; see `divide_cores`."""
    elsewhere = fleet.urls or not isinstance(engine, ServerConfig) or engine.url is not None
    if elsewhere or cluster.current().name != "local" or platform(engine) != "cpu":
        return 0
    return fleet.engines * ENGINES.find(engine.name).ranks(engine)


def count_beside(policy: str, fleets: Mapping[str, tuple[EngineConfig, FleetConfig]]) -> int:
    """Return the processes of all other policies' servers here; `fleets`: see `list_fleets`."""
    return sum(count_served(*each) for name, each in fleets.items() if name != policy)


def divide_cores(engine: EngineConfig, fleet: FleetConfig, base: Path, beside: int = 0) -> list[EngineConfig]:
    """Return each engine's settings: its address, or its share of the CPU cores where it computes on them.

    Args:
        engine: the policy's.
        fleet: the policy's.
        base: the folder of its model.
        beside: processes of other policies' servers that share the cores with those of this one.
    """
    if fleet.urls:
        return [engine.model_copy(update={"url": url}) for url in fleet.urls]
    server = engine if isinstance(engine, ServerConfig) else None
    if (server is not None and server.url is not None) or platform(engine) != "cpu":
        return [engine] * fleet.engines
    plugin = ENGINES.find(engine.name)
    each = plugin.ranks(engine)
    threads = cores.choose_threads(engine.threads, plugin.share_cores(fleet.engines * each + beside, base))
    if threads is None or fleet.engines == 1:
        return [engine.model_copy(update={"threads": threads})] * fleet.engines
    # other nodes' cores are numbered on their own, and those of several policies are left to the kernel
    if server is None or beside or cluster.current().name != "local":
        return [engine.model_copy(update={"threads": threads})] * fleet.engines
    lists = cores.blocks(fleet.engines * each, threads)
    own = [server.cores or "|".join(lists[i * each : (i + 1) * each]) for i in range(fleet.engines)]
    return [engine.model_copy(update={"threads": threads, "cores": binding}) for binding in own]


@asynccontextmanager
async def elastic(engine: Engine, config: EngineConfig, fleet: FleetConfig, base: Path) -> AsyncIterator[None]:
    """Have a fleet's engines come and go with the nodes of the run's cluster; others stay as they are."""
    from agentrl.rollout.fleet.fleet import Fleet
    from agentrl.rollout.fleet.nodes import following_nodes

    elsewhere = cluster.current().name != "local"
    if not (elsewhere and isinstance(engine, Fleet) and any(each.managed.node for each in engine.engines.values())):
        yield
        return
    settings = divide_cores(config, fleet, base)[0]
    async with following_nodes(engine, lambda: make_engine(settings, base), fleet.max_engines):
        yield


async def wait_until_started(engine: Engine | None) -> None:
    """Wait until the engine is ready: a server loads for minutes, which no session's deadline should pay for.

    Raises:
        EngineError: no engine could be started.
    """
    if engine is not None:
        await as_managed(engine).start()


async def require_attached(engines: Iterable[Engine]) -> None:
    """Wait for servers that should run already: one that is not there can't appear while a model is warmed up.

    Raises:
        EngineError: none of an engine's servers answers.
    """
    for engine in engines:
        if as_managed(engine).attached:
            await wait_until_started(engine)


@asynccontextmanager
async def asleep(engine: Engine) -> AsyncIterator[None]:
    """Give the trainer the GPU memory of colocated engines meanwhile; new weights must follow. Other engines go on."""
    shared = as_managed(engine)
    if not shared.colocated:
        yield
        return
    await shared.sleep()
    yield
    await shared.wake()
