"""What a trainer of adapters hands out: parts that leave an engine with the same bits as its whole weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from agentrl.config import AlgoConfig, EngineConfig, FleetConfig, WeightsConfig
from agentrl.errors import InvalidWeights
from agentrl.models.adapters import with_products
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.rollout.engines.local.plugin import LocalConfig
from agentrl.rollout.engines.managed import as_managed
from agentrl.rollout.fleet import make_engines
from agentrl.rollout.fleet.fleet import Fleet
from agentrl.rollout.weights.buckets import ADAPTER, WEIGHTS, Weights
from agentrl.rollout.weights.receiver import LoadCommit
from agentrl.types import Engine, PauseMode, Sampling, collect
from tests.train.lora.test_lora import learn, trainer_on

IDS = [8, 9, 10, 12, 19, 26, 33, 40]
CPU = WeightsConfig(verify=True)


def one_engine(path: Path) -> Engine:
    return make_engines(EngineConfig(name="local", device="cpu"), FleetConfig(), CPU, path)


def two_in_this_process(path: Path) -> Engine:
    return make_engines(LocalConfig(device="cpu", process="shared"), FleetConfig(engines=2), CPU, path)


def one_process(path: Path) -> Engine:
    return make_engines(LocalConfig(device="cpu", process="own"), FleetConfig(), CPU, path)


async def sums(engine: Engine) -> set[str]:
    return set((await as_managed(engine).checksums()).values())


@pytest.mark.slow
@pytest.mark.parametrize("make", [one_engine, two_in_this_process, one_process])
def test_an_engine_that_takes_the_adapter_has_the_bits_of_the_whole_weights(
    tiny_llama: Path, make: Callable[[Path], Engine]
) -> None:
    trainer = trainer_on(tiny_llama, rank=1)

    async def run() -> None:
        whole, engine = LocalEngine(tiny_llama, EngineConfig(device="cpu")), make(tiny_llama)
        await as_managed(engine).start()
        try:
            for version in (1, 2):
                learn(trainer, 1)
                weights = Weights.of(trainer)
                await engine.publish(weights, version)
                assert weights.moved == {ADAPTER: weights.parts[ADAPTER].nbytes}
                every = Weights(trainer.weights)
                await whole.publish(every, version)
                assert await sums(engine) == {await whole.checksum()}
                assert engine.version() == version
                assert every.moved[WEIGHTS] > 4 * weights.moved[ADAPTER]
        finally:
            await engine.close()
            await whole.close()

    asyncio.run(run())


@pytest.mark.slow
def test_an_engine_that_comes_back_gets_the_version_that_the_others_took_as_an_adapter(tiny_llama: Path) -> None:
    """From the publisher's copy of the adapter in memory, or from the folder that the engines loaded."""
    trainer = learn(trainer_on(tiny_llama, rank=1), 1)

    async def run() -> None:
        for transport in ("inproc", "disk"):
            fleet = make_engines(
                LocalConfig(device="cpu", process="shared"),
                FleetConfig(engines=2),
                WeightsConfig(transport=transport),
                tiny_llama,
            )
            assert isinstance(fleet, Fleet)
            late = LocalEngine(tiny_llama, EngineConfig(device="cpu"))
            await fleet.start()
            await fleet.publish(Weights.of(trainer), 1)
            folder = await fleet.publisher.folder()
            assert folder is not None
            await late.receiver.load_folder(folder, LoadCommit(1, flush=True))
            assert {await late.checksum()} == await sums(fleet)
            await late.publish(Weights(trainer.weights), 2)
            assert {await late.checksum()} == await sums(fleet)
            await fleet.close()
            await late.close()

    asyncio.run(run())


@pytest.mark.slow
def test_turns_that_are_under_way_go_on_under_a_published_adapter(tiny_llama: Path) -> None:
    """Its keys and values are computed anew, so that the turn's later tokens are those of the new weights alone."""
    trainer = learn(trainer_on(tiny_llama))

    async def run() -> None:
        engine, fresh = (LocalEngine(tiny_llama, EngineConfig(device="cpu")) for _ in range(2))
        sampling = Sampling(max_new_tokens=48, temperature=0.0, seed=3)
        turn = asyncio.create_task(collect(engine.generate("a/1", IDS, sampling)))
        await asyncio.sleep(0)
        await engine.pause(PauseMode.RETRACT)
        await engine.publish(Weights.of(trainer), 5)
        await engine.resume()
        found = await turn
        await fresh.publish(Weights(trainer.weights), 5)
        assert {span.version for span in found.versions} <= {0, 5}
        after = await engine.score([*IDS, *found.token_ids])
        assert after == await fresh.score([*IDS, *found.token_ids])
        await engine.close()
        await fresh.close()

    asyncio.run(run())


@pytest.mark.slow
def test_whole_weights_are_handed_out_where_no_folder_holds_the_base(tiny_llama: Path) -> None:
    trainer = trainer_on(tiny_llama)
    assert trainer.parts().keys() == {ADAPTER}
    trainer.begin(AlgoConfig(name="sft", lr=1e-2), 2, whole=True)
    assert trainer.parts() == {}
    trainer.begin(AlgoConfig(lr=1e-2), 2)
    assert trainer.parts() == {}  # the base is another than the folder's
    adapter = trainer_on(tiny_llama).parts()[ADAPTER]
    with pytest.raises(InvalidWeights, match="another base"):
        list(with_products([("other.weight", torch.zeros(2, 2))], adapter))
