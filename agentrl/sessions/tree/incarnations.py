"""The weights that a version means, where a run lost some and learned versions of the same numbers again.

A run that is killed may have generated under versions that its newest checkpoint does not have. Where the steps can't
be computed again bit for bit, it learns others, whose versions have the same numbers. A run's losses are the last
version that survived each of them; a version's incarnation is the number of losses that it is later than. So a version
that survived keeps its incarnation, and (version, incarnation) names weights for good. Where several policies learn, a
loss has a last version of each, by their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from agentrl.types import MAIN, Node

Loss = int | Mapping[str, int]
"""The last version that survived a loss of weights: of the trained policy, or of each of several, `main` among them."""


def incarnation(version: int, losses: Sequence[Loss], policy: str = MAIN) -> int:
    """Return the incarnation, from 0, of a version generated now.

    Args:
        version: of the trained policy.
        losses: of each loss of weights so far the last version that survived it.
        policy: the policy's name; one that is not among several has the main one's weights.
    """
    survived = (each if isinstance(each, int) else each.get(policy, each[MAIN]) for each in losses)
    return sum(last < version for last in survived)


def mark(nodes: Iterable[Node], losses: Sequence[Loss]) -> None:
    """Set the incarnation of the version spans of new turns of policies that are trained."""
    for node in nodes if losses else ():
        if node.policy == MAIN or any(node.trainable):
            spans, policy = node.versions, node.policy or MAIN
            node.versions = [replace(span, incarnation=incarnation(span.version, losses, policy)) for span in spans]
