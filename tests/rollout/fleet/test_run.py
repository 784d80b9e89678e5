"""A whole run on a fleet: it learns from several engines, publishes to all of them, and probes each."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import agentrl
from agentrl.config import EngineConfig, FleetConfig, WeightsConfig
from agentrl.errors import ConfigError, EngineError
from agentrl.rollout.engines import ENGINES
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.rollout.engines.local.plugin import LocalPlugin
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.rollout.fleet import make_engines
from agentrl.rollout.fleet.fleet import Fleet
from agentrl.rollout.weights.receiver import EngineReceiver
from agentrl.train.display.console import Display
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer


class Babble(agentrl.Env):
    """Whatever is said has some reward: every batch has a signal."""

    max_turns = 1

    def tasks(self, split: str = "train") -> Any:
        return [{"id": str(number)} for number in range(8)]

    async def reset(self, task: Any, *, seed: int | None = None) -> str:
        return "say something"

    @agentrl.reward(weight=1.0)
    def said(self, session: Any) -> float:
        return sum(map(ord, session.answer)) % 101 / 101

    async def step(self, message: Any) -> agentrl.StepResult:
        return agentrl.StepResult(terminated=True)


SMALL: dict[str, Any] = {
    "steps": 2,
    "rollout": {"groups_per_step": 2, "group_size": 4, "turn_tokens": 16},
    "eval": {"tasks": 2},
    "engine": {"device": "cpu"},
    "trainer": {"device": "cpu"},
}


def quiet() -> Display:
    return Display(Console(file=StringIO()))


@pytest.mark.slow
@pytest.mark.parametrize("weights", [{}, {"delta": True, "mode": "abort"}], ids=str)
def test_a_run_on_two_engines_publishes_to_both_and_probes_them(tmp_path: Path, weights: dict[str, Any]) -> None:
    settings = {**SMALL, "fleet": {"engines": 2}, "weights": weights, "run_dir": str(tmp_path / "run")}
    result = agentrl.train(Babble, display=quiet(), **settings)
    rows = result.metrics
    assert [row["version"] for row in rows] == [1.0, 2.0]
    assert all(0 <= row["probe/abs_max"] < 1e-4 for row in rows)
    assert all(row["status/infra_error"] == 0 for row in rows)


@pytest.mark.slow
def test_engines_that_disagree_with_the_trainer_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publication that is whole, and wrong: what a mistaken name mapping does."""
    publish = LocalEngine.publish

    async def mistaken(self: LocalEngine, weights: Any, version: int) -> None:
        await publish(self, ((name, tensor.flip(0)) for name, tensor in weights), version)

    monkeypatch.setattr(LocalEngine, "publish", mistaken)
    with pytest.raises(EngineError, match="probe_bound"):
        agentrl.train(Babble, display=quiet(), run_dir=str(tmp_path / "run"), **SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("sleeping", [None, 1])
def test_a_colocated_fleet_sleeps_while_the_trainer_learns_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeping: int | None
) -> None:
    """In front of engines in this process, which have nothing to give back: what is told to them, and when."""
    told: list[str] = []

    def tell(kind: Any, name: str, label: str) -> None:
        plain = getattr(kind, name)

        def method(self: Any, *args: Any) -> Any:
            told.append(label)
            return plain(self, *args)

        monkeypatch.setattr(kind, name, method)

    tell(EngineReceiver, "sleep", "sleep")
    tell(TorchTrainer, "step", "learn")
    tell(TorchTrainer, "release", "release")
    tell(EngineReceiver, "wake", "wake")
    tell(LocalEngine, "publish", "publish")
    monkeypatch.setattr(LocalPlugin, "sleeping", lambda self, engine: engine)
    fleet = {"engines": 2, "colocated": True, "colocated_engines": sleeping}
    settings = {**SMALL, "fleet": fleet, "run_dir": str(tmp_path / "run")}
    result = agentrl.train(Babble, display=quiet(), **settings)
    assert [row["version"] for row in result.metrics] == [1.0, 2.0]
    count = sleeping or 2
    step = ["sleep"] * count + ["learn", "release"] + ["wake"] * count + ["publish"] * 2
    assert told == ["release", *step, *step]


@pytest.mark.parametrize(
    ("engine", "reason"),
    [({"name": "local"}, "engine=local can't"), ({"name": "sglang", "device": "cpu"}, "no GPU memory")],
    ids=str,
)
def test_engines_that_cannot_sleep_are_refused_as_colocated_ones(
    folder: Path, engine: dict[str, Any], reason: str
) -> None:
    config = EngineConfig(**engine) if engine["name"] == "local" else ServerConfig(**engine)
    with pytest.raises(ConfigError, match=reason):
        make_engines(config, FleetConfig(colocated=True), WeightsConfig(), folder)


@pytest.mark.parametrize("transport", ["ipc", "distributed"])
def test_a_transport_that_engines_cannot_take_is_refused_before_anything_is_published(
    folder: Path, transport: str
) -> None:
    config = EngineConfig(device="cpu", max_batch=4)
    with pytest.raises(ConfigError, match=f"'local' can't take weights.transport={transport}; allowed: auto, inproc"):
        make_engines(config, FleetConfig(), WeightsConfig(transport=transport), folder)


async def test_one_engine_in_this_process_stays_as_it_is_and_others_make_a_fleet(folder: Path) -> None:
    engine = EngineConfig(device="cpu", max_batch=4)
    alone = make_engines(engine, FleetConfig(), WeightsConfig(), folder)
    two = make_engines(engine, FleetConfig(engines=2), WeightsConfig(), folder)
    assert isinstance(alone, LocalEngine)
    assert isinstance(two, Fleet)
    assert len(two.engines) == 2
    await alone.close()
    await two.close()


@pytest.mark.parametrize(
    ("server", "expected"),
    [({}, 1), ({"tp": 4}, 4), ({"tp-size": 2, "pp_size": 2}, 4), ({"tensor_parallel_size": 8}, 8)],
)
def test_a_servers_worker_ranks_are_read_from_its_own_options(server: dict[str, int], expected: int) -> None:
    assert ENGINES.find("sglang").ranks(ServerConfig(name="sglang", server=server)) == expected
