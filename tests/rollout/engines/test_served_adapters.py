"""Adapters on SGLang and vLLM: those of the trainer, published while turns are under way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentrl.config import AlgoConfig, EngineConfig, FleetConfig, LoraConfig, WeightsConfig
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.rollout.fleet import make_engines
from agentrl.rollout.fleet.fleet import Fleet
from agentrl.rollout.weights.buckets import ADAPTER, Weights
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Sampling, Turn, collect
from tests.rollout.engines import servers
from tests.train.lora.test_lora import learn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
RANK = 64
"""The server's, and that of adapters whose memory is to be seen."""
IDS = [8, 9, 10, 12, 19, 26, 33, 40]


@pytest.fixture(scope="module", params=["sglang", "vllm"])
def settings(request: pytest.FixtureRequest, folder: Path) -> Iterator[Any]:
    """One server after another, and the settings that attach to it."""
    for url in servers.served(request.param, folder, adapter_rank=RANK):
        config = servers.config(request.param, adapter_rank=RANK)
        yield config.model_copy(update={"url": url, "python": None})


async def resident(engine: Any) -> set[str]:
    """The adapters that the server itself lists."""
    listed = (await engine.client.get("/v1/models"))["data"]
    return {each["id"] for each in listed if each["id"].startswith("version-")}


def test_turns_end_under_the_adapter_that_they_began_with_and_each_is_the_trainers_own(
    settings: Any, folder: Path
) -> None:
    """Versions are published while turns run; whole weights come in between; after twelve versions one is left."""
    trainer = TorchTrainer(folder, TorchConfig(device="cpu"), AlgoConfig(lr=3e-3), lora=LoraConfig(rank=4))

    async def run() -> None:
        fleet = make_engines(settings, FleetConfig(), WeightsConfig(verify=True, mode="retract"), folder)
        assert isinstance(fleet, Fleet)
        await fleet.start()
        (member,) = fleet.engines.values()
        engine: Any = member.managed
        local = LocalEngine(folder, EngineConfig(device="cpu"))

        async def publish(version: int, *, whole: bool = False) -> None:
            learn(trainer, 1)
            weights = Weights(trainer.weights) if whole else Weights.of(trainer)
            await fleet.publish(weights, version)
            assert (weights.moved.keys() == {ADAPTER}) != whole
            await local.publish(Weights(trainer.weights), version)

        async def is_the_trainers() -> None:
            for temperature in (1.0, 0.7):
                pairs = zip(await engine.score(IDS, temperature), await local.score(IDS, temperature), strict=True)
                assert max(abs(one - other) for one, other in pairs) < 1e-4

        await is_the_trainers()
        turns = list[asyncio.Task[Turn]]()
        for version in range(1, 4):
            await publish(version)
            await is_the_trainers()
            sampling = Sampling(max_new_tokens=150, seed=version)
            turns.append(asyncio.create_task(collect(fleet.generate(f"{version}/1", IDS, sampling))))
            await asyncio.sleep(0.3)
        assert await resident(engine) >= {
            f"version-{version}" for version, turn in enumerate(turns, 1) if not turn.done()
        }
        for version, turn in enumerate(turns, 1):
            assert {span.version for span in (await turn).versions} == {version}
        again = await collect(fleet.generate("4/1", IDS, Sampling(max_new_tokens=8)))
        path = [*IDS, *again.token_ids]
        for one, other in zip(again.logprobs, (await local.score(path))[len(IDS) :], strict=True):
            assert abs(one - other) < 1e-4
        await publish(4, whole=True)
        await is_the_trainers()
        for version in range(5, 13):
            await publish(version)
        await is_the_trainers()
        assert await resident(engine) == {"version-12"}
        await fleet.close()
        await local.close()

    asyncio.run(run())


def test_twenty_publications_leave_no_memory_behind(settings: Any, folder: Path) -> None:
    """The server's processes, after twenty versions, when vLLM's cache of 16 is full, and after twenty more."""
    trainer = TorchTrainer(folder, TorchConfig(device="cpu"), AlgoConfig(lr=3e-3), lora=LoraConfig(rank=RANK))
    sizes = []

    async def run() -> None:
        fleet = make_engines(settings, FleetConfig(), WeightsConfig(verify=True, mode="retract"), folder)
        assert isinstance(fleet, Fleet)
        await fleet.start()
        (member,) = fleet.engines.values()
        for version in range(1, 41):
            learn(trainer, 1)
            await fleet.publish(Weights.of(trainer), version)
            await collect(fleet.generate(f"{version}/1", IDS, Sampling(max_new_tokens=8, seed=version)))
            if version >= 20:
                sizes.append(sum(one.memory_info().rss for one in psutil.Process().children(recursive=True)))
        assert await resident(member.managed) == {"version-40"}
        await fleet.close()

    asyncio.run(run())
    twenty = 20 * Weights.of(trainer).parts[ADAPTER].nbytes
    print(f"{(sizes[-1] - sizes[0]) / 1e6:.2f} MB of {sizes[0] / 1e6:.0f} more, of {twenty / 1e6:.1f} MB published")
    assert sizes[-1] - sizes[0] < twenty / 4
