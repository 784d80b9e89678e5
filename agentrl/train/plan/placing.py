"""A run's request to a cluster's nodes: the same for a dry run as for places that are taken before it starts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentrl.cluster import Cluster, ClusterNode, Resources
from agentrl.cluster.placement.inventory import on_gpus, override_resources
from agentrl.cluster.placement.plan import Demand, Layout, Wanted, place
from agentrl.config import MODEL, PAST, ClusterConfig, EngineConfig, FleetConfig, Policies, TrainerConfig
from agentrl.config.learners import LearnerConfig, Learners, named_as_given
from agentrl.errors import ConfigError
from agentrl.models.folders import model_settings
from agentrl.rollout.engines import ENGINES
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.rollout.episodes.judges import start_folder
from agentrl.rollout.workers import gateway_workers, reward_workers
from agentrl.rollout.workers.environment_workers import CPUS
from agentrl.train.plan.memory import Split
from agentrl.train.trainers import TRAINERS
from agentrl.types import MAIN

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunDemand:
    """A run's request.

    Attributes:
        roles: what a worker of each role occupies.
        units: how many units each role has; a unit is on one node.
        members: how many workers a unit is.
        layout: how trainer and engines share GPUs.
        colocated: with layout=mixed, how many engines are on the trainer's GPUs.
        others: trainers and engines of other policies that learn, where they occupy something else than the main ones.
        frozen: engines of policies that don't learn, likewise, or beside engines on the trainer's GPUs.
    """

    roles: Mapping[str, Resources]
    units: Mapping[str, int]
    members: Mapping[str, int]
    layout: Layout = "disaggregated"
    colocated: int | None = None
    others: tuple[Demand, ...] = ()
    frozen: tuple[Demand, ...] = ()

    def wanted(self, memory: float = 0.0) -> Wanted:
        """Return the request for the placement; `memory` is what a trainer's rank needs on its GPU, in GiB."""
        if self.layout != "disaggregated":
            for role in ("trainer", "engine"):
                if not self.roles[role].gpus:
                    raise ConfigError(
                        f"fleet.colocated=true has engines on the trainer's GPUs, and {role}.device has it on the CPU: "
                        f"{role}.device=cuda fits, or fleet.colocated=false"
                    )
        roles = ("trainer", "engine", "environments", "rewards", "gateway")
        trainer, engine, *others = (self.demand(role) for role in roles)
        if trainer.gpus:
            trainer = Demand(trainer.role, trainer.count, trainer.gpus, trainer.cpus, memory, trainer.custom)
        return Wanted(trainer, engine, (*others, *self.others, *self.frozen), self.layout, self.colocated)

    def demand(self, role: str) -> Demand:
        """Return what all units of a role occupy."""
        unit = self.roles[role].times(self.members[role])
        return Demand(role, self.units[role], unit.gpus, unit.cpus, custom=unit.custom)


def split_of(trainer: TrainerConfig, model: Any, nodes: Sequence[ClusterNode]) -> Split:
    """Return how the trainer's ranks share the model, whose settings `model` has as attributes."""
    here = sum(node.gpus for node in nodes) if on_gpus(trainer.device, nodes) else 0
    return TRAINERS.find(trainer.name).split(trainer, model, here)


def run_demand(
    learners: Learners,
    policies: Policies,
    machines: ClusterConfig,
    splits: Mapping[str, Split],
    nodes: Sequence[ClusterNode],
    *,
    averaged: bool = False,
) -> RunDemand:
    """Return a run's request to nodes; engines that run already (`fleet.urls`, `engine.url`) ask for nothing.

    `splits`: the main policy's, and those of other policies' trainers, each of which has a place of its own, as its
    engine has. `averaged`: there is an engine of averaged weights.
    """
    others = {name: split for name, split in splits.items() if name != MAIN}
    demand = _demand_alone(learners[MAIN], splits[MAIN], nodes, machines, int(averaged))
    for name, each in others.items():
        own = _demand_alone(learners[name], each, nodes, machines)
        for role in ("trainer", "engine"):
            same = _more_of(demand, own, role)
            demand = same or replace(demand, others=(*demand.others, own.demand(role)))
    for name, engines in frozen_engines(policies, machines).items():
        own = _demand_alone(learners[MAIN].beside(policies[name]), Split(), nodes, machines)
        own = replace(own, units={**own.units, "engine": engines})
        same = _more_of(demand, own, "engine") if demand.layout == "disaggregated" else None
        demand = same or replace(demand, frozen=(*demand.frozen, own.demand("engine")))
    return demand


def _more_of(demand: RunDemand, own: RunDemand, role: str) -> RunDemand | None:
    """The request with another policy's units of a role as more of the main one's; None: they occupy something else."""
    if (own.roles[role], own.members[role]) != (demand.roles[role], demand.members[role]):
        return None
    return replace(demand, units={**demand.units, role: demand.units[role] + own.units[role]})


def frozen_engines(policies: Policies, machines: ClusterConfig) -> dict[str, int]:
    """The engines of policies that don't learn, by their names, where these have places on a cluster's nodes.

    Those in the driver's process, and servers that run already, ask for none.
    """
    return {
        name: own.past.size + 1 if own.name == PAST else own.fleet.engines
        for name, own in policies.items()
        if machines.name == "ray" and own.name in (MODEL, PAST) and not own.learns
        if not (ENGINES.find(own.engine.name).in_process(own.engine) or is_attached(own.engine, own.fleet))
    }


def is_attached(engine: EngineConfig, fleet: FleetConfig) -> bool:
    """Return whether a policy's engines are servers that run already."""
    return bool(fleet.urls or getattr(engine, "url", None))


def _demand_alone(
    own: LearnerConfig, split: Split, nodes: Sequence[ClusterNode], limits: ClusterConfig, more: int = 0
) -> RunDemand:
    """The request of a policy's trainer and engines, of which there are `more` than the fleet has."""
    engine, fleet, trainer = own.engine, own.fleet, own.trainer
    attached = is_attached(engine, fleet)
    by_nodes = isinstance(engine, ServerConfig)  # the others are told their device
    serving = on_gpus(engine.device, nodes) if by_nodes else engine.device == "cuda"
    ranked = TRAINERS.find(trainer.name).has_ranks
    training = on_gpus(trainer.device, nodes) if ranked else trainer.device == "cuda"
    kinds = {
        "trainer": Resources(gpus=int(training)),
        "engine": Resources(gpus=ENGINES.find(engine.name).ranks(engine) if serving else 0),
        "environments": Resources(cpus=CPUS),
        "rewards": Resources(cpus=reward_workers.CPUS),
        "gateway": Resources(cpus=gateway_workers.CPUS),
    }
    units = {
        "trainer": split.ranks // split.tensor,
        "engine": 0 if attached else fleet.engines + more,
        "environments": limits.environments,
        "rewards": limits.rewards,
        "gateway": limits.gateways,
    }
    return RunDemand(
        {role: override_resources(role, resources, limits.resources) for role, resources in kinds.items()},
        units,
        {"trainer": split.tensor, "engine": 1, "environments": 1, "rewards": 1, "gateway": 1},
        *layout_of_fleet(fleet if units["engine"] else FleetConfig()),
    )


def layout_of_fleet(fleet: FleetConfig) -> tuple[Layout, int | None]:
    """The layout that a fleet's settings choose, and how many engines of a mixed one are on the trainer's GPUs."""
    if fleet.shared in (0, fleet.count):
        return "colocated" if fleet.shared else "disaggregated", None
    return "mixed", fleet.shared


def reserve(
    cluster: Cluster,
    machines: ClusterConfig,
    learners: Learners,
    policies: Policies,
    model: Path,
    *,
    averaged: bool = False,
) -> None:
    """Make sure that the run fits on the nodes, and take what it occupies, where `cluster.place_timeout` is set.

    On a cluster that was there before it, a run that does not fit waits for nodes to join, and says so. Autoscalers see
    it in Ray's queue, or where places are taken by a demand of their own. The Ray that is started for one run gets no
    more nodes.

    Colocated engines need their places beside the trainer's, so that these are taken in any case. Frozen policies'
    engines that occupy something else than the main policy's have no part in what is taken: Ray finds their nodes.
    """
    if machines.name != "ray":
        return
    timeout = machines.place_timeout or (machines.start_timeout if learners[MAIN].fleet.shared else None)
    from agentrl.cluster.ray.cluster import RayCluster

    assert isinstance(cluster, RayCluster)
    nodes = [node for node in cluster.nodes() if node.alive]
    splits = {}
    for name, own in learners.items():
        with named_as_given(policies, name):
            folder = model if name == MAIN else start_folder(name, policies[name], model)
            splits[name] = split_of(own.trainer, model_settings(folder), nodes)
    run = run_demand(learners, policies, machines, splits, nodes, averaged=averaged)
    if timeout is not None and run.others:
        kinds = ", ".join(sorted({each.role for each in run.others}))
        raise ConfigError(
            f"cluster.place_timeout={timeout:g} takes places of one kind for all trainers, and of one for all engines, "
            f"and policies have other ones ({kinds}): give all the same device and tensor_parallel, or no place_timeout"
        )
    try:
        assignment = place(nodes, run.wanted())
    except ConfigError as error:
        if machines.address is None:
            raise
        setting = "start_timeout" if machines.place_timeout is None else "place_timeout"
        seconds = timeout or machines.start_timeout
        logger.warning("%s; waiting up to %g s (cluster.%s) for nodes", error, seconds, setting)
        if timeout is None:
            return
        assignment = cluster.awaited(run.wanted(), timeout)
    if timeout is not None:
        if run.frozen:
            nodes = [node for node in cluster.nodes() if node.alive]
            assignment = place(nodes, replace(run, frozen=()).wanted())
        cluster.reserve(assignment, run.roles, timeout, run.members)
