"""A fleet whose engines come and go with the nodes of the run's cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from agentrl import cluster
from agentrl.cluster.base import ClusterNode
from agentrl.cluster.placement import elastic
from agentrl.common.concurrency import in_thread
from agentrl.errors import InvalidInput
from agentrl.rollout.fleet.fleet import Fleet
from agentrl.rollout.fleet.member import MemberState
from agentrl.types import Engine


@asynccontextmanager
async def following_nodes(fleet: Fleet, make: Callable[[], Engine], most: int | None) -> AsyncIterator[None]:
    """Add engines where nodes join, and take those of drained nodes out of the fleet.

    An engine on a node that is drained gets no new requests as soon as there is another one, finishes what it has, and
    is closed. Where a node dies without a word, the fleet starts its engines anew on others.

    Args:
        fleet: engines on nodes of the current cluster.
        make: starts another one.
        most: how many there may be; None is as many as there are.
    """
    before = _usable(await in_thread(cluster.current().nodes))
    following = asyncio.create_task(_follow(fleet, make, before, most))
    try:
        yield
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def _usable(nodes: Sequence[ClusterNode]) -> int:
    return elastic.usable(nodes, cluster.current().occupied("engine"))


async def _follow(fleet: Fleet, make: Callable[[], Engine], before: int, most: int | None) -> None:
    count, removing = len(fleet.engines), dict[str, asyncio.Task[None]]()
    try:
        while True:
            nodes = await in_thread(cluster.current().nodes)
            drained = elastic.drained(nodes)
            leaving = {name for name, member in fleet.engines.items() if member.managed.node in drained}
            staying = fleet.engines.keys() - leaving
            others = any(fleet.engines[name].state is MemberState.READY for name in staying)
            want = elastic.wanted(count, most, before, _usable(nodes))
            for _ in range(want - len(staying)):
                await fleet.add(lambda: asyncio.to_thread(make))
            for name in leaving - removing.keys() if others else ():
                removing[name] = asyncio.create_task(_remove(fleet, name))
            await asyncio.sleep(elastic.LOOK_SECONDS)
    finally:
        for task in removing.values():
            task.cancel()


async def _remove(fleet: Fleet, name: str) -> None:
    with contextlib.suppress(InvalidInput):  # it is gone already
        await fleet.remove(name)
