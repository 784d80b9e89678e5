"""Two real SGLang servers as one engine: weights by every transport and mode, kill -9 and SIGSTOP."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
import torch

from agentrl.config import WEIGHTS, FleetConfig, WeightsConfig
from agentrl.rollout.engines import make_engine
from agentrl.rollout.engines.servers.sglang_receiver import SGLangReceiver
from agentrl.rollout.fleet.fleet import Fleet
from agentrl.rollout.fleet.member import UpdateTarget
from agentrl.rollout.weights import make_publisher
from agentrl.rollout.weights.buckets import Bucket, Named
from agentrl.rollout.weights.receiver import LoadCommit
from agentrl.types import Turn
from tests.rollout.engines import servers
from tests.rollout.engines.conftest import model, reference
from tests.rollout.fleet.proxy import Fault, Proxy
from tests.rollout.fleet.turns import PATIENCE, PROMPT, drawing, turn, turns_under_way, until_ready

__all__ = ["model"]

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]
TIMES = FleetConfig(probe_every=0.5, probe_timeout=30, stall_timeout=30, max_restarts=3)


@pytest.fixture(scope="module")
def url(folder: Path) -> str:
    return servers.shared("sglang", folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(folder: Path, url: str) -> AsyncIterator[Fleet]:
    """Two servers: the first is this module's own, which tests may kill, the other one also of other modules."""
    config = servers.config("sglang")
    engines = [lambda: make_engine(config, folder), lambda: servers.attached("sglang", folder, url)]
    made = Fleet(engines, make_publisher(WeightsConfig(), folder, config), TIMES)
    try:
        await asyncio.wait_for(made.start(), PATIENCE)
        yield made
    finally:
        await made.close()


class Policy:
    """A trainer's weights that move a little with each version."""

    def __init__(self, model: Any) -> None:
        self.start = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        self.model, self.version = model, 0

    def step(self) -> None:
        self.version += 1
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self.start[name] + 0.004 * (self.version % 7))

    def __iter__(self) -> Iterator[Named]:
        tied = "lm_head.weight"
        return ((name, tensor) for name, tensor in self.model.state_dict().items() if name != tied)

    async def difference(self, fleet: Fleet) -> float:
        """The largest |log-probability difference| of any engine and the trainer."""
        ids = [*PROMPT, *range(20, 60)]
        own = reference(self.model)(ids, 1.0)
        found = await fleet.scores(ids)
        return max(abs(a - b) for scored in found.values() for a, b in zip(scored, own, strict=True))


@pytest.fixture(scope="module")
def policy(folder: Path) -> Policy:
    from transformers import AutoModelForCausalLM

    return Policy(AutoModelForCausalLM.from_pretrained(folder).eval())


async def publish(fleet: Fleet, folder: Path, policy: Policy, **weights: Any) -> None:
    """One more version, by settings of its own; versions go on from one test to the next."""
    config = WEIGHTS.build({"bucket_mb": 1, "timeout": 300, **weights})
    before, fleet.publisher = fleet.publisher, make_publisher(config, folder, servers.config("sglang"))
    await before.close()
    policy.step()
    await fleet.publish(policy, policy.version)
    assert fleet.outcome is not None
    assert not fleet.outcome.broken
    assert fleet.version() == policy.version


async def eight_that_draw_at_once(fleet: Fleet, name: str) -> list[asyncio.Task[Turn]]:
    """Eight turns of 300 tokens."""
    return await turns_under_way(fleet, name, 8, 300, lambda: sum(map(drawing, fleet.engines.values())) == 8)


@pytest.mark.parametrize("mode", ["drain", "abort", "retract", "in_place"])
async def test_every_engine_moves_at_once_and_each_token_knows_its_version(
    fleet: Fleet, folder: Path, policy: Policy, mode: str
) -> None:
    await until_ready(fleet)
    await publish(fleet, folder, policy)  # the shared server came with the weights of another module's tests
    old = fleet.version()
    running = await eight_that_draw_at_once(fleet, mode)
    await publish(fleet, folder, policy, mode=mode)
    turns = await asyncio.gather(*running)
    late = await turn(fleet, f"{mode}-late/0", 4)
    assert {span.version for span in late.versions} == {policy.version}
    assert all(len(one.token_ids) == 300 for one in turns)
    versions = [[span.version for span in one.versions] for one in turns]
    if mode == "drain":
        assert versions == [[old]] * 8
    else:  # on a busy machine a turn may end while the weights are still on their way
        assert all(of_turn in ([old], [old, policy.version]) for of_turn in versions)
        assert [old, policy.version] in versions, "no turn was under way when the weights changed"
    for one in turns:
        assert [span.start for span in one.versions[1:]] == [span.end for span in one.versions[:-1]]
        assert one.versions[-1].end == 300
    assert await policy.difference(fleet) < 1e-4
    assert not any(member.open for member in fleet.engines.values())


WAYS = [{"mode": "drain"}, {"mode": "abort"}, {"mode": "retract"}, {"mode": "in_place"}, {"transport": "ipc"}]
BROADCAST = {"transport": "distributed", "backend": "gloo"}


@pytest.mark.parametrize("way", [*WAYS, BROADCAST], ids=str)
async def test_what_the_old_weights_computed_is_gone_after_a_publication_but_where_requests_kept_it(
    fleet: Fleet, folder: Path, policy: Policy, way: dict[str, Any]
) -> None:
    """The flush travels with the last load. Asked under a key of its own, since ours changes with each version."""
    await until_ready(fleet)
    clients: list[Any] = [member.receiver for member in fleet.engines.values()]
    body = {"input_ids": list(range(40, 72)), "sampling_params": {"max_new_tokens": 1}, "extra_key": "a test's"}

    async def cached() -> list[int]:
        answers = [await receiver.client.generate_whole(body) for receiver in clients]
        return [answer["meta_info"]["cached_tokens"] for answer in answers]

    await cached()
    assert all(await cached())
    await publish(fleet, folder, policy, **way)
    assert [bool(number) for number in await cached()] == [way.get("mode") == "in_place"] * 2


@pytest.mark.parametrize("way", [BROADCAST, {"transport": "ipc"}, {"delta": True}], ids=str)
async def test_engines_and_trainer_agree_after_two_publications_by(
    fleet: Fleet, folder: Path, policy: Policy, way: dict[str, Any]
) -> None:
    await until_ready(fleet)
    await publish(fleet, folder, policy, **way)
    assert await policy.difference(fleet) < 1e-4
    policy.step()
    await fleet.publish(policy, policy.version)  # the second time: a group that stands, a delta
    assert await policy.difference(fleet) < 1e-4
    sums = {await member.receiver.checksum() for member in fleet.engines.values()}
    assert len(sums) == 1
    assert {span.version for span in (await turn(fleet, "after/0", 4)).versions} == {policy.version}


async def test_a_broadcast_arrives_while_a_server_generates_and_is_loaded_in_one_call(
    fleet: Fleet, folder: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a server that agentrl started receives ahead; what it was sent and never told to load is forgotten."""
    await until_ready(fleet)
    await publish(fleet, folder, policy)
    (member,) = (each for each in fleet.engines.values() if each.receiver.receives_ahead)
    publisher = make_publisher(
        WEIGHTS.build({"bucket_mb": 1, "timeout": 300, **BROADCAST}), folder, servers.config("sglang")
    )
    receive, asked = SGLangReceiver.receive, list[int]()

    async def counting(receiver: SGLangReceiver, bucket: Bucket, commit: LoadCommit | None) -> None:
        asked.append(len(bucket.names))
        await receive(receiver, bucket, commit)

    monkeypatch.setattr(SGLangReceiver, "receive", counting)
    ids = [*PROMPT, *range(20, 60)]
    for staged, ahead in ((1, False), (1, True), (2, False), (1, True), (1, True)):
        running = await turns_under_way(fleet, f"ahead-{policy.version}", 4, 60, lambda: drawing(member) > 0)
        for _ in range(staged):
            policy.step()
            await publisher.stage(policy, policy.version)
        asked.clear()
        outcome = await publisher.send({member.name: UpdateTarget(member, policy.version)}, policy.version)
        assert not outcome.broken
        assert (asked == [len(list(policy))]) == ahead
        scored, own = await member.engine.score(ids, 1.0), reference(policy.model)(ids, 1.0)
        assert max(abs(a - b) for a, b in zip(scored, own, strict=True)) < 1e-4
        await asyncio.wait_for(asyncio.gather(*running), PATIENCE)
    monkeypatch.undo()
    await publisher.close()
    await publish(fleet, folder, policy)


async def test_two_publishers_broadcast_to_one_server_in_turns(fleet: Fleet, folder: Path, policy: Policy) -> None:
    """Each in its own group: the server's client once knew the group alone that was joined last."""
    await until_ready(fleet)
    await publish(fleet, folder, policy)
    member = next(iter(fleet.engines.values()))
    config = WEIGHTS.build({"bucket_mb": 1, "timeout": 300, **BROADCAST})
    first, second = (make_publisher(config, folder, servers.config("sglang")) for _ in range(2))
    ids = [*PROMPT, *range(20, 60)]
    for publisher in (first, second, first, second):
        policy.step()
        await publisher.stage(policy, policy.version)
        outcome = await publisher.send({member.name: UpdateTarget(member, policy.version)}, policy.version)
        assert not outcome.broken
        scored, own = await member.engine.score(ids, 1.0), reference(policy.model)(ids, 1.0)
        assert max(abs(a - b) for a, b in zip(scored, own, strict=True)) < 1e-4
    await first.close()
    await second.close()
    await publish(fleet, folder, policy)


async def test_where_a_server_is_killed_amid_turns_and_a_broadcast_both_go_on_and_it_comes_back_up_to_date(
    fleet: Fleet, folder: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 of a whole server when it is asked for its second bucket: the group breaks, the other rolls forward."""
    await until_ready(fleet)
    await publish(fleet, folder, policy, mode="retract", **BROADCAST)
    old, lost = fleet.version(), fleet.lost
    name, victim = next(iter(fleet.engines.items()))
    receive, asked = victim.receiver.receive, 0

    async def dying(bucket: Bucket, commit: LoadCommit | None) -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            server: Any = victim.engine
            os.killpg(server.server.pid, signal.SIGKILL)
        await receive(bucket, commit)

    monkeypatch.setattr(victim.receiver, "receive", dying)
    running = await turns_under_way(fleet, "killed", 16, 200, lambda: all(map(drawing, fleet.engines.values())))
    policy.step()
    await fleet.publish(policy, policy.version)
    assert fleet.outcome is not None
    assert set(fleet.outcome.broken) == {name}
    turns = await asyncio.wait_for(asyncio.gather(*running), PATIENCE)
    assert all(len(one.token_ids) == 200 for one in turns)
    assert {span.version for one in turns for span in one.versions} <= {old, policy.version}
    assert fleet.lost > lost
    assert await policy.difference(fleet) < 1e-4
    assert {span.version for span in (await turn(fleet, "half/0", 4)).versions} == {policy.version}
    await until_ready(fleet)
    assert await policy.difference(fleet) < 1e-4
    assert {member.engine.version() for member in fleet.engines.values()} == {policy.version}


@pytest.mark.parametrize("fault", [Fault.DROP, Fault.DELAY, Fault.TRUNCATE, Fault.GARBLE])
async def test_turns_end_whole_though_the_way_to_an_engine_fails(fleet: Fleet, folder: Path, fault: Fault) -> None:
    """A proxy before one of two attached servers misbehaves amid the turns; once it behaves, the server is back."""
    await until_ready(fleet)
    urls = [str(member.receiver.client.url) for member in fleet.engines.values()]
    proxy = Proxy(urls[0])
    ways = [await proxy.start(), urls[1]]
    times = FleetConfig(probe_every=0.5, probe_timeout=10, stall_timeout=10, max_restarts=1000)
    publisher = make_publisher(WeightsConfig(), folder, servers.config("sglang"))
    shaky = Fleet([lambda url=url: servers.attached("sglang", folder, url) for url in ways], publisher, times)
    try:
        await asyncio.wait_for(shaky.start(), PATIENCE)
        for attempt in range(10):  # on a busy machine the bytes of all turns may have passed the proxy before the fault
            name = f"{fault}-{attempt}"
            running = await turns_under_way(shaky, name, 12, 150, lambda: drawing(shaky.engines["engine-0"]) > 0)
            proxy.misbehave(fault)
            for one in await asyncio.wait_for(asyncio.gather(*running), PATIENCE):
                assert len(one.token_ids) == len(one.logprobs) == 150
                assert one.versions[-1].end == 150
                assert {span.version for span in one.versions} == {shaky.version()}
            proxy.misbehave(Fault.NONE)
            await until_ready(shaky)
            if shaky.lost:
                return
        pytest.fail("no turn was ever lost to the fault")
    finally:
        await shaky.close()
        await proxy.close()


async def test_a_stopped_model_process_is_noticed_though_its_front_still_answers(fleet: Fleet) -> None:
    """SIGSTOP of everything but the HTTP front: no token comes, while /model_info answers as ever."""
    await until_ready(fleet)
    running = await turns_under_way(fleet, "stopped", 16, 200, lambda: all(map(drawing, fleet.engines.values())))
    lost = fleet.lost
    victim: Any = fleet.engines["engine-0"].engine
    stop_behind_the_front(victim.server.pid)
    turns = await asyncio.wait_for(asyncio.gather(*running), PATIENCE)
    assert all(len(one.token_ids) == 200 for one in turns)
    assert fleet.lost > lost
    assert "fleet.stall_timeout" in fleet.engines["engine-0"].reason


def stop_behind_the_front(pid: int) -> None:
    for process in psutil.Process(pid).children(recursive=True):
        if "sglang::" in process.name() or any("sglang::" in word for word in process.cmdline()):
            process.suspend()
