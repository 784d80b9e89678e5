"""A trainer from outside the package is placed and planned by what its plug-in says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.cluster import ClusterNode
from agentrl.cluster.placement.plan import place
from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.plugins.trainer import Algorithm, Shape, Split, TrainerConfig, TrainerMemory, TrainerPlugin
from agentrl.train.driver.setup import complete
from agentrl.train.plan.dry_run import describe_run
from agentrl.train.plan.memory import GIB
from agentrl.train.plan.placing import run_demand, split_of
from agentrl.train.plan.shapes import KNOWN
from agentrl.train.plan.step import Rates
from tests.train.test_plan import settings_of

GPUS = [ClusterNode("a", 8.0, 4), ClusterNode("b", 8.0, 8)]


class ShardedConfig(TrainerConfig):
    """Settings of the trainer below."""

    ranks: int = 8
    """Each on a GPU."""


class Sharded(TrainerPlugin):
    """It has as many ranks as it is told, in pairs that share a node, and keeps three GiB on each."""

    settings = ShardedConfig
    has_ranks = True
    own_critic = False

    def split(self, config: ShardedConfig, model: Any, gpus: int) -> Split:
        """Pairs of tensor-parallel ranks."""
        if model.num_attention_heads % 2:
            raise ConfigError("trainer.ranks: the model's heads can't be shared by two")
        return Split(tensor=2, data=config.ranks // 2)

    def memory(self, config: ShardedConfig, algorithm: Algorithm, shape: Shape, split: Split) -> TrainerMemory:
        """The same whatever the model is."""
        return TrainerMemory(weights=3 * GIB, gradients=GIB, optimizer=0.0, activations=0.0, logits=0.0)


TRAINER = Sharded()


def configured(device: str, **more: Any) -> RunConfig:
    trainer = {"name": f"{__file__}:TRAINER", "device": device}
    return complete({"env": "calculator", "model": "tiny", "engine": {"device": "cpu"}, "trainer": trainer, **more})


@pytest.mark.slow
def test_its_ranks_get_places_of_their_own() -> None:
    """A trainer from outside that needs eight GPUs was planned as one process."""
    config = configured("cuda", cluster={"name": "ray"})
    splits = {"main": split_of(config.trainer, KNOWN["qwen3-8b"], GPUS)}
    run = run_demand(config.learners, config.policies, config.cluster, splits, GPUS)
    assert (run.units["trainer"], run.members["trainer"], run.roles["trainer"].gpus) == (4, 2, 1)
    assert sum(len(unit.devices) for unit in place(GPUS, run.wanted()).places if unit.role == "trainer") == 8
    with pytest.raises(ConfigError, match="8 GPUs"):
        place(GPUS[:1], run.wanted())


@pytest.mark.slow
def test_a_dry_run_shows_its_ranks_and_its_memory_and_refuses_what_it_has_no_place_for(tmp_path: Path) -> None:
    (file := tmp_path / "config.json").write_text(json.dumps(settings_of(KNOWN["qwen3-0.6b"])))
    run = {"dry_run": True, "model": str(file)}
    lines = "\n".join(describe_run(configured("cpu", **run), Rates()))
    assert "trainer 3" in lines
    assert "memory of a trainer rank: 4 GiB = weights 3 GiB, gradients 1 GiB" in lines
    with pytest.raises(ConfigError, match="has one model, whose hidden states its critic reads"):
        list(describe_run(configured("cpu", **run, algo={"name": "ppo", "value_trunk": "own"}), Rates()))
