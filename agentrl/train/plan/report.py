"""The output of `agentrl plan`: a table of layouts in Markdown, and the settings of the best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.cluster.base import ClusterNode
from agentrl.overrides import merge, validate
from agentrl.train.plan.layouts import Candidate, PlanConfig, rank_layouts
from agentrl.train.plan.memory import GIB
from agentrl.train.plan.shapes import shape_of

NODES = ("nodes", "gpus", "memory", "cpus")
RATES = ("tflops", "bandwidth", "link", "network")
HEAD = (
    "| layout | trainer ranks (tensor x pipeline x context, experts) | recompute | engines x GPUs | trainer GiB "
    "| cache, tokens | generate s | train s | publish s | step s |"
)


def plan_lines(words: Mapping[str, Any], settings: Mapping[str, Any] | None) -> Iterator[str]:
    """The lines of `agentrl plan`.

    Args:
        words: of the command line.
        settings: a run's, planned as it is on the nodes that the words describe; None ranks the layouts of a model.
    """
    if settings is None:
        return describe_plan(validate(words, PlanConfig))
    from agentrl.train.driver.setup import complete
    from agentrl.train.plan.dry_run import describe_run

    described_by = {name: words[name] for name in (*NODES, *RATES) if name in words}
    run = complete(merge(settings, {name: value for name, value in words.items() if name not in described_by}))
    nodes = validate({"model": run.model.name, **described_by}, PlanConfig)
    return describe_run(run, nodes.rates, nodes.described)


def describe_plan(config: PlanConfig) -> Iterator[str]:
    """The lines of a plan."""
    shape, nodes = shape_of(config.model), nodes_of(config)
    found = rank_layouts(shape, config, nodes)
    experts = f", {shape.active / 1e9:.3g} B of them active" if shape.num_experts else ""
    yield (
        f"{config.model}: {shape.parameters / 1e9:.3g} B parameters{experts}; {len(nodes)} x {nodes[0].gpus} GPUs of "
        f"{config.memory:g} GiB; a step: {config.sessions} sessions of {config.work.length} tokens"
    )
    yield ""
    yield from table(found)
    yield ""
    yield f"the first: {found[0].settings}"
    yield from (f"warning: {warning}" for warning in warnings(found[0], nodes))


def nodes_of(config: PlanConfig) -> list[ClusterNode]:
    """The nodes that are described, or a running Ray cluster's."""
    if config.address is None:
        return config.described
    from agentrl.cluster import open_cluster
    from agentrl.config import ClusterConfig

    with open_cluster(ClusterConfig(name="ray", address=config.address), None) as cluster:
        return [node for node in cluster.nodes() if node.alive]


def table(found: Sequence[Candidate]) -> Iterator[str]:
    """A row for each layout."""
    yield HEAD
    yield "|" + "---|" * (HEAD.count("|") - 1)
    for each in found:
        split, step = each.split, each.time
        experts = f", {split.expert}" if split.expert > 1 else ""
        engines = f"{each.colocated} + {each.engines - each.colocated}" if each.layout == "mixed" else each.engines
        again = ("yes" if each.numbers.recompute else "no") + (", offload" if each.numbers.offloaded else "")
        yield (
            f"| {each.layout} | {split.ranks} ({split.tensor} x {split.pipeline} x {split.context}{experts}) "
            f"| {again} | {engines} x {each.ranks} "
            f"| {each.trainer.total / GIB:.0f} | {each.engine.tokens:,} | {step.generate:.0f} | {step.train:.0f} "
            f"| {step.publish:.1f} | {step.total:.0f} |"
        )


def warnings(best: Candidate, nodes: Sequence[ClusterNode]) -> Iterator[str]:
    """Idle devices, and links that take much of a step."""
    idle = sum(len(best.assignment.idle(node)) for node in nodes) if best.assignment else 0
    if idle:
        yield f"{idle} GPUs are idle"
    step = best.time
    if step.publish > 0.2 * step.total:
        yield f"weights take {step.publish / step.total:.0%} of a step: the network between nodes is the bottleneck"
    if best.layout == "disaggregated" and step.generate > 2 * step.train:
        yield "the trainer waits for the engines more than half of each step"
    if step.overlaps and step.train > 2 * step.alone:
        yield f"the engines{' apart' if best.colocated else ''} wait for the trainer more than half of each step"
