"""Places each part of a run on a node and GPUs: computed before anything is started, all or nothing.

    assignment = place(nodes, Wanted(
        trainer=Demand("trainer", count=2, gpus=4),      # 8 ranks in 2 tensor-parallel groups
        engines=Demand("engine", count=4, gpus=2),       # tensor x pipeline = 2 GPUs each
        others=(Demand("environments", 8, cpus=1.0),),
        layout="disaggregated",
    ))

A unit (a tensor-parallel group of the trainer's ranks, an engine, a worker) is on one node; units of one demand may be
on several. Layouts:

- disaggregated: trainer and engines have GPUs of their own;
- colocated: each engine is on GPUs of the trainer, no two engines on the same;
- mixed: `colocated_engines` of the engines are on the trainer's GPUs, the others on their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.cluster.base import ClusterNode
from agentrl.cluster.placement.assignment import Assignment, Place, fitted
from agentrl.cluster.placement.demands import LAYOUTS, Demand, Layout, Wanted
from agentrl.cluster.placement.refusal import refusal

__all__ = ["LAYOUTS", "Assignment", "Demand", "Layout", "Place", "Wanted", "fitted", "place"]


def place(nodes: Sequence[ClusterNode], wanted: Wanted) -> Assignment:
    """Assign everything that is wanted to nodes and GPUs.

    Args:
        nodes: the cluster, dead nodes too; where it does not matter, the first ones are taken first.
        wanted: what is to be placed.

    Raises:
        ConfigError: it does not fit; the message says what is asked, what is there and what would fit.
    """
    found = fitted(nodes, wanted)
    if found is None:
        raise refusal(nodes, wanted)
    return found
