"""Another process than the one that started a trainer computes with it, over connections of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from agentrl import cluster, watchdog
from agentrl.cluster import Cluster, Role, Worker
from agentrl.config import AlgoConfig, ClusterConfig, LoraConfig, TrainerConfig
from agentrl.errors import InfraError, InvalidInput, TrainerError, TrainerTimeout
from agentrl.rollout.weights.buckets import ADAPTER
from agentrl.train.algorithms.advantages.ppo import PpoConfig
from agentrl.train.driver.recovery import find_death
from agentrl.train.forest.forest import Forest
from agentrl.train.trainers import ShareableTrainer, make_trainer
from agentrl.train.trainers.fsdp.settings import FsdpConfig
from agentrl.train.trainers.ranks import group
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.worker import WorkerTrainer
from tests.cluster.test_contract import SILENCE
from tests.cluster.test_server import until
from tests.train.backends.megatron import zoo
from tests.train.backends.megatron.batches import random_forests

ALGO = PpoConfig(lr=1e-3)
LONG = 400.0
TORCH = TorchConfig(device="cpu", threads=1)
FSDP = FsdpConfig(device="cpu", threads=1, ranks=2, timeout=LONG)
CONFIGS = pytest.mark.parametrize("config", [TORCH, FSDP], ids=["torch", "fsdp"])
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zoo.write("smollm2", tmp_path_factory.mktemp("models") / "smollm2")


@pytest.fixture(params=[False], ids=["plain"])
def here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """This machine, used as a cluster's nodes are."""
    with cluster.open_cluster(ClusterConfig(encrypted=request.param, silence_timeout=SILENCE), None) as found:
        monkeypatch.setattr(found, "name", "nodes")
        yield found


def started(config: TrainerConfig, folder: Path, algo: AlgoConfig = ALGO) -> Any:
    """A trainer in processes of its own."""
    if isinstance(config, FsdpConfig):
        return make_trainer(folder, config, algo)
    return WorkerTrainer(ClusterConfig(), folder, config, algo)


def processes(trainer: Any) -> list[Worker]:
    return list(trainer.ranks.workers)


class Elsewhere:
    """A process that computes with a trainer of this one: what `ShareableTrainer` describes."""

    def __init__(self, trainer: ShareableTrainer, **changed: Any) -> None:
        self.trainer = trainer
        access: Any = replace(cast(Any, trainer.access()), **changed)
        self.worker = cluster.current().spawn(
            Role("environments", "tests.cluster.roles:Computer", (access,), threads=1)
        )
        self.worker.wait_ready(LONG)

    def __call__(self, method: str, *arguments: Any) -> Any:
        with self.trainer.leased():
            found, version = self.worker.run("compute", method, *arguments, timeout=LONG)
        self.trainer.stepped(version)
        return found

    def close(self) -> None:
        self.worker.shutdown()


@contextmanager
def both(config: TrainerConfig, folder: Path, **changed: Any) -> Iterator[tuple[Any, Elsewhere]]:
    """A trainer, and another process that computes with it, by an access in which something is changed."""
    with closing(started(config, folder)) as trainer, closing(Elsewhere(trainer, **changed)) as elsewhere:
        yield trainer, elsewhere


def batch(seed: int) -> list[Forest]:
    forests = random_forests(seed, old=False)
    for forest in forests:
        forest.returns, forest.value = forest.advantage.abs(), torch.zeros(len(forest))
    return forests


def computed(compute: Callable[..., Any], seeds: Sequence[int]) -> tuple[list[dict[str, float]], list[bytes]]:
    """The metrics of some steps, and what is computed before and after each."""
    metrics, tensors = [], []
    for seed in seeds:
        forests = batch(seed)
        tensors += compute("values", forests, 0.5) + compute("logprobs", forests)
        metrics.append(compute("step", forests, None))
        tensors += compute("logprobs", forests)
    assert any(bool(tensor.any()) for tensor in tensors)
    return metrics, [tensor.numpy().tobytes() for tensor in tensors]


def by_itself(trainer: Any) -> Callable[..., Any]:
    return lambda method, *arguments: getattr(trainer, method)(*arguments)


def weights(trainer: Any) -> dict[str, bytes]:
    return {name: tensor.detach().numpy().tobytes() for name, tensor in trainer.weights()}


@pytest.mark.parametrize("here", [False, True], ids=["plain", "encrypted"], indirect=True)
@CONFIGS
def test_another_process_computes_the_same_bits_and_what_it_has_learned_is_this_ones_trainer(
    here: Cluster, model: Path, config: TrainerConfig
) -> None:
    with closing(started(config, model)) as own:
        wanted, held = computed(by_itself(own), range(3)), weights(own)
    with both(config, model) as (trainer, elsewhere):
        assert all((worker.address.certificate is not None) is here.encrypted for worker in processes(trainer))
        first = computed(elsewhere, [0])
        assert trainer.version == 1
        second = computed(by_itself(trainer), [1])
        assert (first[0] + second[0], first[1] + second[1]) == (wanted[0][:2], wanted[1][: len(first[1] + second[1])])
        with closing(Elsewhere(trainer)) as another:
            assert computed(another, [2]) == (wanted[0][2:], wanted[1][len(first[1] + second[1]) :])
        assert trainer.version == 3
        assert weights(trainer) == held


def stop(worker: Any) -> None:
    """Have a process answer nothing any more."""
    os.killpg(worker.process.server.pid, signal.SIGSTOP)


@CONFIGS
def test_a_process_that_stops_while_another_calls_it_is_the_trainers_death_and_a_new_trainer_goes_on(
    here: Cluster, model: Path, tmp_path: Path, config: TrainerConfig
) -> None:
    with both(config, model) as (trainer, elsewhere):
        elsewhere("step", batch(0), None)
        trainer.save(tmp_path / "state")
        wanted = trainer.step(batch(1))
        dies = processes(trainer)[-1]
        stop(dies)
        with pytest.raises(TrainerError, match=f"the connection to {dies.role} at .* was lost") as caught:
            elsewhere("step", batch(2), None)
        assert find_death(caught.value) is caught.value
        assert not isinstance(caught.value, TrainerTimeout)
        require_ended(trainer)
    with closing(started(config, model)) as again:
        again.load(tmp_path / "state")
        with closing(Elsewhere(again)) as elsewhere:
            assert elsewhere("step", batch(1), None) == wanted
            assert again.version == 2


def require_ended(trainer: Any) -> None:
    """A trainer whose processes have ended is closed, and not called once more."""
    until(lambda: all(worker.poll() is not None for worker in processes(trainer)), "its processes go on")
    with pytest.raises(InfraError):
        trainer.step(batch(0))


@CONFIGS
def test_a_call_of_another_process_that_takes_too_long_is_the_trainers_timeout(
    here: Cluster, model: Path, config: TrainerConfig
) -> None:
    here.silence_timeout = LONG
    with both(config, model, timeout=2.0) as (trainer, elsewhere):
        for worker in processes(trainer):
            stop(worker)
        with pytest.raises(TrainerTimeout, match="ran past its deadline"):
            elsewhere("logprobs", batch(0))
        require_ended(trainer)


def test_a_rank_without_a_heartbeat_ends_the_call_of_another_process_and_the_error_says_which(
    here: Cluster, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.silence_timeout = LONG
    monkeypatch.setattr(group, "SILENT", 3.0)
    with both(FSDP, model) as (trainer, elsewhere):
        stop(processes(trainer)[1])
        with pytest.raises(TrainerError, match="rank 1 of 2") as caught:
            elsewhere("step", batch(0), None)
        assert any("rank 1 on this machine has no heartbeat" in note for note in caught.value.__notes__)
        require_ended(trainer)


@CONFIGS
def test_what_a_trainers_code_raises_ends_the_trainer_with_its_traceback(
    here: Cluster, model: Path, config: TrainerConfig
) -> None:
    with both(config, model) as (trainer, elsewhere):
        with pytest.raises(TrainerError, match="Traceback"):
            elsewhere("values", batch(0), "no number")
        require_ended(trainer)


def test_ranks_that_another_process_calls_are_not_called_and_their_heartbeats_are_progress(
    here: Cluster, model: Path
) -> None:
    with closing(started(FSDP, model)) as trainer:
        with trainer.leased():
            with pytest.raises(InfraError, match="another process computes with the ranks"):
                trainer.logprobs(batch(0))
            before = watchdog.count_progress()
            until(lambda: watchdog.count_progress() > before, "the watchdog is told nothing")
        assert trainer.logprobs(batch(0))


def test_an_error_beside_the_trainer_ends_it_as_well_and_is_raised_as_it_is(here: Cluster, model: Path) -> None:
    with closing(started(TORCH, model)) as trainer:
        with pytest.raises(InvalidInput, match="beside"), trainer.leased():
            raise InvalidInput("beside")
        require_ended(trainer)


def test_a_trainer_that_died_before_another_process_connects_is_a_trainers_error_there(
    here: Cluster, model: Path
) -> None:
    with closing(started(TORCH, model)) as trainer:
        access = trainer.access()
    with pytest.raises(TrainerError, match="can't be reached"):
        access.open()


def test_an_adapters_trainer_in_a_worker_has_the_parts_and_the_kept_base_of_one_in_this_process(
    here: Cluster, model: Path, tmp_path: Path
) -> None:
    """There engines got whole weights, and each checkpoint after a warm start held the whole model."""
    algo, found = AlgoConfig(lr=1e-3), []
    lora = LoraConfig(rank=2)
    for name in ("worker", "here"):
        folder = tmp_path / name
        made = partial(WorkerTrainer, ClusterConfig()) if name == "worker" else make_trainer
        with closing(cast(Any, made(model, TORCH, algo, lora=lora))) as trainer:
            trainer.begin(algo, 1, whole=True)
            trainer.step(batch(0))
            trainer.export(folder / "base")
            trainer.set_base(folder / "base")
            trainer.begin(algo, 1)
            trainer.step(batch(1))
            trainer.save(folder / "state")
            part = trainer.parts()[ADAPTER]
            state = torch.load(folder / "state", weights_only=True)
            found.append(({name: tuple(map(_bytes, each)) for name, each in part.matrices.items()}, state["base"]))
    assert found[0] == found[1]
    assert all(any(b) for _, b in found[0][0].values())


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().numpy().tobytes()
