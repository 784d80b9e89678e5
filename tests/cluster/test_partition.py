"""A node whose packets are dropped: what is there is noticed within a deadline, and its work is done elsewhere.

The node is a network namespace of its own on this machine, joined to ours by a pair of interfaces.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from agentrl import cluster
from agentrl.cluster import Address, connect
from agentrl.config import ClusterConfig, FleetConfig, WeightsConfig
from agentrl.errors import DeadlineExceeded, InfraError
from agentrl.rollout.fleet import make_engines
from agentrl.types import Sampling, collect
from tests.cluster.conftest import STORE, add_node
from tests.cluster.test_contract import LONG
from tests.cluster.test_server import until
from tests.cluster.test_servers import SMALL, folder
from tests.conftest import need

__all__ = ["folder"]
NEAR, FAR = "10.213.7.1", "10.213.7.2"
SERVING = """
import asyncio, sys
from agentrl.cluster.wire.calls import Listener
from tests.cluster.roles import Counter
async def main():
    async with Listener(Counter(), "counter", "counter", sys.argv[1], b"key") as address:
        print(address.port, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def space() -> Iterator[str]:
    """A namespace whose address is FAR; ours is NEAR there."""
    name, ours = f"agentrl-{uuid.uuid4().hex[:8]}", f"rl{uuid.uuid4().hex[:8]}"

    def ip(*words: str) -> None:
        done = subprocess.run(["ip", *words], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"network namespaces are not permitted here: ip {' '.join(words)}: {done.stderr.strip()}")

    try:
        ip("netns", "add", name)
        ip("link", "add", ours, "type", "veth", "peer", "name", "far", "netns", name)
        ip("address", "add", f"{NEAR}/24", "dev", ours)
        ip("link", "set", ours, "up")
        for words in (f"address add {FAR}/24 dev far", "link set far up", "link set lo up"):
            ip("-n", name, *words.split())
        yield name
    finally:
        pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
        subprocess.run(["kill", "-KILL", *pids], capture_output=True)
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        subprocess.run(["ip", "link", "delete", ours], capture_output=True)


def inside(space: str, *words: str, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(["ip", "netns", "exec", space, *words], text=True, **more)


def cut(space: str) -> None:
    """Drop all packets from and to the namespace; no end of a connection is told."""
    for chain, way in (("INPUT", "-i"), ("OUTPUT", "-o")):
        with inside(space, "iptables", "-A", chain, way, "far", "-j", "DROP", stderr=subprocess.PIPE) as dropping:
            _, said = dropping.communicate()
        if dropping.returncode:
            pytest.skip(f"iptables is not permitted here: {said.strip()}")


async def test_calls_to_a_worker_that_no_packet_reaches_keep_their_deadlines_and_its_connection_ends(
    space: str,
) -> None:
    """A call blocked its caller, and with it an event loop, once the socket's buffer was full."""
    with inside(space, sys.executable, "-c", SERVING, FAR, stdout=subprocess.PIPE) as serving:
        assert serving.stdout is not None
        address = Address("counter", FAR, int(serving.stdout.readline()), b"key")
        busy, idle = connect(address), connect(address)
        assert await busy.call("add", 1, timeout=LONG) == 1
        cut(space)
        calls = (busy.call("add", bytes(1 << 23), timeout=1.0) for _ in range(3))
        async with asyncio.timeout(LONG):
            for error in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(error, DeadlineExceeded)
        assert isinstance(await asyncio.to_thread(idle.ended.result, LONG), InfraError)
        busy.close()
        idle.close()
        serving.kill()


@contextmanager
def ray_in(space: str) -> Iterator[str]:
    """The address of a Ray cluster of a head here and a node in the namespace."""
    from ray.cluster_utils import Cluster

    with ExitStack() as ends:
        nodes = Cluster()
        ends.callback(nodes.shutdown)
        add_node(nodes, num_cpus=8, node_ip_address=NEAR, include_dashboard=False)
        start = (sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={nodes.address}", "--block")
        there = inside(
            space,
            *(*start, f"--node-ip-address={FAR}", "--num-cpus=4", f"--object-store-memory={STORE}"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        ends.callback(there.wait)
        ends.callback(there.kill)
        yield nodes.address


@contextmanager
def room_taken() -> Iterator[None]:
    """Half of this node's cores are taken: of two engines, one goes to the other node."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    class Holder:
        def holds(self) -> None: ...

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    holder = ray.remote(num_cpus=4, scheduling_strategy=here)(Holder).remote()
    ray.get(holder.holds.remote(), timeout=LONG)
    yield
    ray.kill(holder)


async def test_requests_to_an_engine_that_no_packet_reaches_move_and_another_one_is_started(
    space: str, folder: Path, tmp_path: Path
) -> None:
    need(find_spec("ray") is not None, "Ray (the extra `ray`)")
    times = FleetConfig(engines=2, probe_every=0.5, probe_timeout=5.0, stall_timeout=10.0)
    given = ClusterConfig.model_validate({"name": "ray", "resources": {"engine": {"cpus": 4}}})
    with ray_in(space) as address:
        config = given.model_copy(update={"address": address})
        with cluster.opened(config, tmp_path / "logs") as here:
            await asyncio.to_thread(
                until, lambda: sum(node.alive for node in here.nodes()) == 2, "the node in the namespace did not join"
            )
            numbers = itertools.count()

            async def ask() -> int:
                request = fleet.generate(f"s{next(numbers)}/0", [1, 2], Sampling(max_new_tokens=16))
                return int("".join(map(str, (await collect(request)).token_ids)))

            async def two_servers() -> set[int]:
                """The processes that answer, once there are two; no request fails."""
                found = set[int]()
                async with asyncio.timeout(3 * LONG):
                    while len(found) < 2:
                        found.update(await asyncio.gather(*(ask() for _ in range(8))))
                        await asyncio.sleep(0.1)
                return found

            with room_taken():
                fleet = make_engines(SMALL, times, WeightsConfig(), folder)
                before = await two_servers()
            cut(space)
            assert len(await two_servers() & before) == 1
            await fleet.close()
