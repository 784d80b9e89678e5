"""The weights that a version means, where a run lost some and learned versions of the same numbers again.

A run that is killed may have generated under versions that its newest checkpoint does not have. Where the steps can't
be computed again bit for bit, it learns others, whose versions have the same numbers. A run's losses are the last
version that survived each of them; a version's incarnation is the number of losses that it is later than. So a version
that survived keeps its incarnation, and (version, incarnation) names weights for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from agentrl.types import MAIN, Node


def incarnation(version: int, losses: Sequence[int]) -> int:
    """Return the incarnation, from 0, of a version generated now.

    Args:
        version: of the trained policy.
        losses: of each loss of weights so far the last version that survived it.
    """
    return sum(survived < version for survived in losses)


def mark(nodes: Iterable[Node], losses: Sequence[int]) -> None:
    """Set the incarnation of the version spans of new turns of the trained policy."""
    for node in nodes if losses else ():
        if node.policy == MAIN or any(node.trainable):
            spans = node.versions
            node.versions = [replace(span, incarnation=incarnation(span.version, losses)) for span in spans]
