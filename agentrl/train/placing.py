"""A run's places on the nodes of a Ray cluster, taken whole before anything is started."""

from __future__ import annotations

from agentrl.cluster import Cluster, Resources
from agentrl.cluster.inventory import on_gpus, reserved
from agentrl.cluster.placement import Demand, Wanted, place
from agentrl.config import RunConfig
from agentrl.rollout.engines import ENGINES
from agentrl.rollout.engines.server_settings import ServerConfig
from agentrl.rollout.environments import CPUS


def reserve(cluster: Cluster, config: RunConfig) -> None:
    """Take what the run's trainer, engines and environment workers occupy, where `cluster.place_timeout` is set.

    Raises:
        ConfigError: it does not fit on the nodes, or is not free in time.
    """
    timeout = config.cluster.place_timeout
    if config.cluster.name != "ray" or timeout is None:
        return
    from agentrl.cluster.ray import RayCluster

    assert isinstance(cluster, RayCluster)
    nodes, serves = cluster.nodes(), config.engine
    attached = config.fleet.urls or getattr(serves, "url", None)
    on_gpu = on_gpus(serves.device, nodes) if isinstance(serves, ServerConfig) else serves.device == "cuda"
    engines = 0 if attached else config.fleet.engines
    own = {
        "trainer": Resources(gpus=int(config.trainer.device == "cuda")),
        "engine": Resources(gpus=ENGINES.find(serves.name).ranks(serves) if on_gpu else 0),
        "environments": Resources(cpus=CPUS),
    }
    roles = {role: reserved(role, resources, config.cluster.resources) for role, resources in own.items()}
    numbers = {"trainer": 1, "engine": engines, "environments": config.cluster.environments}
    trainer, engine, workers = (
        Demand(role, numbers[role], wanted.gpus, wanted.cpus, custom=wanted.custom) for role, wanted in roles.items()
    )
    cluster.reserve(place(nodes, Wanted(trainer, engine, (workers,))), roles, timeout)
