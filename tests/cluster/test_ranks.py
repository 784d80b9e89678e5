"""The trainer's ranks as workers on two Ray nodes: the same numbers as on one machine, and ended together."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl import cluster
from agentrl.config import AlgoConfig, ClusterConfig, TrainerConfig
from agentrl.errors import AgentRLError, TrainerError
from agentrl.train.record import ledger
from agentrl.train.trainers import Trainer, make_trainer
from agentrl.train.trainers.fsdp.settings import FsdpConfig
from agentrl.train.trainers.megatron.settings import MegatronConfig
from agentrl.train.trainers.ranks.group import Ranks
from agentrl.train.trainers.worker import place_trainer
from tests.cluster.test_run import run
from tests.cluster.test_trainer_access import Elsewhere
from tests.conftest import need
from tests.train.backends.megatron import zoo
from tests.train.backends.megatron.batches import random_forests

ALGO = AlgoConfig(lr=1e-3)
PATIENCE = 400.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def on_ray(ray_nodes: Any, tmp_path: Path) -> Iterator[ClusterConfig]:
    """A node has eight logical CPUs and each rank takes five, so two ranks are on two nodes."""
    resources = {"trainer": {"cpus": 5}}
    config = ClusterConfig.model_validate({"name": "ray", "address": ray_nodes.address, "resources": resources})
    with cluster.open_cluster(config, tmp_path / "logs"):
        yield config


def learned(trainer: Trainer, *seeds: int) -> list[dict[str, float]]:
    return [trainer.step(random_forests(seed, old=False)) for seed in seeds]


def written_by_rank_0(trainer: Any, base: Path, folder: Path) -> dict[str, tuple[int, ...]]:
    """What a publication writes without the driver, which then reads it."""
    from safetensors.torch import load_file

    shapes: dict[str, tuple[int, ...]] = trainer.save_weights(folder, base, 1 << 16)
    held = dict(trainer.weights())
    files = [load_file(file) for file in sorted(folder.glob("*.safetensors"))]
    found = {name: tensor for file in files for name, tensor in file.items()}
    assert len(files) > 1
    assert found.keys() == held.keys()
    assert all(torch.equal(found[name], held[name]) for name in held)
    return shapes


def same(trainer: Trainer, others: Mapping[str, Tensor]) -> bool:
    weights = dict(trainer.weights())
    return weights.keys() == others.keys() and all(torch.equal(weights[name], others[name]) for name in others)


def test_ranks_on_two_nodes_learn_as_on_one_and_another_trainer_goes_on_where_one_is_killed(
    on_ray: ClusterConfig, tmp_path: Path
) -> None:
    folder = zoo.write("smollm2", tmp_path / "model")
    config = FsdpConfig(ranks=2, timeout=PATIENCE, threads=1, device="cpu")
    with cluster.open_cluster(ClusterConfig(), None), closing(make_trainer(folder, config, ALGO)) as here:
        wanted = [(learned(here, *seeds), dict(here.weights())) for seeds in ((0, 1), (5,), (2,))]
    (first, then), (second, after), (third, last) = wanted
    with closing(_placed(on_ray, folder, config)) as there:
        assert len(set(there.ranks.nodes)) == 2
        assert learned(there, 0, 1) == first
        assert same(there, then)
        with closing(Elsewhere(there)) as elsewhere:
            assert [elsewhere("step", random_forests(5, old=False), None)] == second
            assert there.version == 3
        assert same(there, after)
        next(iter(there.weights()))  # and no more: the ranks go through to the end
        shapes = {name: tuple(tensor.shape) for name, tensor in after.items()}
        assert written_by_rank_0(there, folder, tmp_path / "published") == shapes
        there.save(tmp_path / "state")
        (victim := there.ranks.workers[1]).kill()
        victim.ended.result(PATIENCE)
        with pytest.raises(TrainerError, match="rank 1 of 2"):
            learned(there, 2)
        assert not there.ranks.alive
    with closing(_placed(on_ray, folder, config)) as again:
        again.load(tmp_path / "state")
        assert (again.version, learned(again, 2)) == (3, third)
        assert same(again, last)
    logs = {file.name: file.read_text() for file in (tmp_path / "logs").iterdir()}
    assert logs.keys() == {"environments-0.log", *(f"trainer-{number}.log" for number in range(4))}
    ranks = {name: said for name, said in logs.items() if name.startswith("trainer")}
    assert all(said.startswith(f"rank {int(name[8]) % 2} of 2 on ") for name, said in ranks.items())


def test_tensor_parallel_ranks_are_on_one_node_and_learn_as_without_a_cluster(ray_nodes: Any, tmp_path: Path) -> None:
    need(importlib.util.find_spec("megatron") is not None, "megatron-core is not installed")
    folder = zoo.write("smollm2", tmp_path / "model")
    config = MegatronConfig(ranks=2, tensor_parallel=2, timeout=PATIENCE, threads=1)
    given = ClusterConfig.model_validate(
        {"name": "ray", "address": ray_nodes.address, "resources": {"trainer": {"cpus": 4}}}
    )
    local = make_trainer(folder, config, ALGO)
    with closing(local) as here, cluster.open_cluster(given, None), closing(_placed(given, folder, config)) as there:
        assert len(set(there.ranks.nodes)) == 1
        assert learned(there, 0) == learned(here, 0)
        with closing(Elsewhere(there)) as elsewhere:
            forests = random_forests(1, old=False)
            assert elsewhere("step", forests, None) == here.step(forests)
            found, wanted = elsewhere("logprobs", forests), here.logprobs(forests)
            assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
        assert same(there, dict(here.weights()))


def test_tensor_parallel_ranks_that_no_node_has_room_for_are_given_up(
    on_ray: ClusterConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.current(), "start_timeout", 0.5)
    folder = zoo.write("smollm2", tmp_path / "model")
    there = r"was not started within 0\.5 s \(cluster\.start_timeout\).* there was .*8 CPUs"
    with pytest.raises(AgentRLError, match=there):
        _placed(on_ray, folder, MegatronConfig(ranks=2, tensor_parallel=2, timeout=PATIENCE))


def test_a_run_goes_on_from_its_last_checkpoint_where_a_rank_dies(
    ray_nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, call, killed = tmp_path / "run", Ranks.call_each, list[Path]()

    def killing(ranks: Ranks, method: str, arguments: Any) -> Any:
        if method == "step" and not killed:
            killed.extend((folder / "checkpoints").glob("*"))
            if killed:
                (victim := ranks.workers[1]).kill()
                victim.ended.result(PATIENCE)
        return call(ranks, method, arguments)

    monkeypatch.setattr(Ranks, "call_each", killing)
    resources = {"trainer": {"cpus": 5}}
    result = run(
        folder,
        cluster={"name": "ray", "address": ray_nodes.address, "resources": resources, "place_timeout": 60.0},
        trainer={"name": "fsdp", "ranks": 2, "device": "cpu", "threads": 1},
        warm_start={"steps": 0},
        eval={"tasks": 1},
        checkpoint_every=1,
    )
    assert len(killed) == 1
    assert [row["version"] for row in result.metrics] == [1.0, 2.0]
    assert list(ledger.faults(folder)) == []
    assert len(list((folder / "logs").glob("trainer-*.log"))) == 4


def _placed(cluster_config: ClusterConfig, folder: Path, config: TrainerConfig) -> Any:
    return place_trainer(cluster_config, folder, config, ALGO, total_steps=1, seed=0)
