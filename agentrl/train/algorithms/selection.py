"""The selection of a step's groups: the algorithm's choice, and other groups in place of those it replaces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from agentrl.rollout.stream.filters import Measure
from agentrl.train.algorithms import Algorithm, Choice
from agentrl.types import Group


def chooser(algorithm: Algorithm, keep: Measure | None) -> Callable[[Group], Choice]:
    """The algorithm's choice among the groups that the run's filter keeps; others are replaced."""
    return lambda group: algorithm.select(group) if keep is None or keep(group) else Choice.REPLACE


async def select(
    choose: Callable[[Group], Choice],
    groups: Sequence[Group],
    take: Callable[[int], Awaitable[Sequence[Group]]],
    drop: Callable[[Sequence[Group], str], None],
    most: int,
) -> tuple[list[Group], dict[str, float]]:
    """The groups that are kept, in the order of their numbers.

    Where none is kept after `most` replacements, the last ones that were to be replaced are: a step has a batch.

    Args:
        choose: says what becomes of a group.
        groups: a step's.
        take: generates so many other groups, of other tasks.
        drop: is called with groups that are not trained on, and why.
        most: groups that may be taken in place of others.

    Returns:
        The groups, and how many were dropped and replaced.
    """
    kept: list[Group] = []
    counts = {"groups/dropped": 0.0, "groups/replaced": 0.0}
    while True:
        choices = [(group, choose(group)) for group in groups]
        kept += [group for group, choice in choices if choice is Choice.KEEP]
        dropped = [group for group, choice in choices if choice is Choice.DROP]
        replaced = [group for group, choice in choices if choice is Choice.REPLACE]
        missing = min(len(replaced), most)
        if not missing and not kept:
            kept, replaced = replaced, []
        drop(dropped, "dropped")
        drop(replaced, "replaced")
        counts["groups/dropped"] += len(dropped)
        counts["groups/replaced"] += len(replaced)
        if not missing:
            return sorted(kept, key=lambda group: group.number), counts
        most -= missing
        groups = await take(missing)
