"""A run's places on the nodes of a Ray cluster, taken whole before anything is started."""

from __future__ import annotations

from agentrl.cluster import Cluster, Resources
from agentrl.cluster.placement import Demand, Wanted, place
from agentrl.config import RunConfig
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
    engines = config.fleet.engines if config.engine.name == "local" else 0  # servers are started elsewhere
    roles = {
        "trainer": Resources(gpus=int(config.trainer.device == "cuda")),
        "engine": Resources(gpus=int(config.engine.device == "cuda")),
        "environments": Resources(cpus=CPUS),
    }
    numbers = {"trainer": 1, "engine": engines, "environments": config.cluster.environments}
    trainer, engine, workers = (
        Demand(role, numbers[role], wanted.gpus, wanted.cpus, custom=wanted.custom) for role, wanted in roles.items()
    )
    cluster.reserve(place(cluster.nodes(), Wanted(trainer, engine, (workers,))), roles, timeout)
