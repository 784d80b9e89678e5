"""The local engine in a process of its own: the same tokens, the same contract, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rich.console import Console

import agentrl
from agentrl.common import processes
from agentrl.errors import ConfigError, EngineError
from agentrl.models.tokenizers import load_tokenizer
from agentrl.rollout.engines.contract import check_engine
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.rollout.engines.local.plugin import ENGINE, LocalConfig
from agentrl.rollout.engines.local.process_engine import ProcessEngine
from agentrl.rollout.weights.receiver import LoadCommit
from agentrl.train.display.console import Display
from agentrl.types import Sampling, collect
from tests.cluster.test_server import alive, until
from tests.rollout.engines.conftest import reference
from tests.rollout.fleet.conftest import local_fleet

OWN = LocalConfig(process="own", device="cpu", max_batch=8)


def make(folder: Path) -> ProcessEngine:
    engine = ENGINE.make(folder, OWN)
    assert isinstance(engine, ProcessEngine)
    return engine


@pytest.mark.slow
async def test_it_keeps_the_contract(folder: Path, model: Any) -> None:
    found = await check_engine(
        lambda: make(folder),
        load_tokenizer(folder),
        reference=reference(model),
        weights=lambda: model.state_dict().items(),
        samples=20,
        requests=4,
    )
    assert found == []


@pytest.mark.slow
async def test_tokens_weights_and_errors_are_those_of_the_engine_in_this_process(
    folder: Path, model: Any, engine: LocalEngine
) -> None:
    other = make(folder)
    assert other.capabilities == engine.capabilities
    sampling = Sampling(max_new_tokens=40, seed=7)
    for one in (engine, other):
        await one.publish(((name, tensor * 1.01) for name, tensor in model.state_dict().items()), 3)
    assert await other.checksum() == await engine.checksum()
    ours, theirs = [await collect(one.generate("a/0", range(1, 30), sampling)) for one in (engine, other)]
    assert ours == theirs
    await other.receiver.load_folder(folder, LoadCommit(4, flush=True))
    assert (other.version(), (await other.health()).ok) == (4, True)
    os.killpg(other.worker.process.server.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="died with exit status"):
        await collect(other.generate("a/1", [1], sampling))
    assert (await other.health()).gone
    await other.close()


@pytest.mark.slow
async def test_settings_that_do_not_suit_the_model_are_refused_by_the_process_that_loads_it(folder: Path) -> None:
    engine = ProcessEngine(folder, OWN.model_copy(update={"routed_experts": True}))
    with pytest.raises(ConfigError, match="has no experts to record"):
        await engine.start()
    await engine.close()


@pytest.mark.slow
async def test_a_fleet_survives_that_the_first_process_is_killed_while_it_loads(folder: Path) -> None:
    """It ended the run as it started, or as it was resumed."""
    made: list[ProcessEngine] = []

    def killed_once() -> ProcessEngine:
        made.append(make(folder))
        if len(made) == 1:
            os.killpg(made[0].worker.process.server.pid, signal.SIGKILL)
        return made[-1]

    fleet = local_fleet(folder, 1, make=killed_once)
    try:
        await fleet.start()
        assert (await fleet.health()).ok
        assert len(made) == 2
    finally:
        await fleet.close()


class Killing(agentrl.Env):
    """Any answer has some reward; the first training session kills the engine's process."""

    max_turns = 1
    killed: ClassVar[list[int]] = []

    def tasks(self, split: str = "train") -> Any:
        return [{"id": f"{split} {number}"} for number in range(8)]

    async def reset(self, task: Any, *, seed: int | None = None) -> str:
        if task.id.startswith("train") and not self.killed and (found := processes.running("engine")):
            self.killed.extend(found)
            os.killpg(os.getpgid(found[-1]), signal.SIGKILL)
        return "say something"

    @agentrl.reward(weight=1.0)
    def said(self, session: Any) -> float:
        return sum(map(ord, session.answer)) % 101 / 101

    async def step(self, message: Any) -> agentrl.StepResult:
        return agentrl.StepResult(terminated=True)


@pytest.mark.slow
def test_an_asynchronous_run_uses_one_and_goes_on_where_it_is_killed(tmp_path: Path) -> None:
    result = agentrl.train(
        Killing,
        display=Display(Console(file=StringIO())),
        steps=3,
        rollout={"groups_per_step": 2, "group_size": 4, "turn_tokens": 16, "staleness": 1},
        eval={"tasks": 2},
        engine={"device": "cpu"},
        trainer={"device": "cpu"},
        run_dir=str(tmp_path / "run"),
    )
    assert Killing.killed
    assert [row["version"] for row in result.metrics] == [1.0, 2.0, 3.0]
    assert not processes.running("engine")


@pytest.mark.slow
def test_it_ends_with_a_process_that_is_killed(folder: Path) -> None:
    code = (
        "import sys, time\n"
        "from agentrl.rollout.engines.local.plugin import LocalConfig\n"
        "from agentrl.rollout.engines.local.process_engine import ProcessEngine\n"
        f"engine = ProcessEngine({str(folder)!r}, LocalConfig(device='cpu'))\n"
        "print('started', flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "started\n"
        below: list[int] = []
        until(lambda: bool(below.extend(processes.descendants(owner.pid)) or len(set(below)) > 1), "no process started")
        owner.kill()
        until(lambda: not any(map(alive, below)), "the engine's process goes on")
