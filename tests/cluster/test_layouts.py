"""Layouts on real Ray nodes, one of which declares GPUs: what is placed, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl import cluster
from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.overrides import validate
from agentrl.train.placing import reserve
from agentrl.train.plan.dry_run import described
from agentrl.train.plan.step import Rates
from tests.cluster.conftest import add_node
from tests.cluster.test_servers import folder

__all__ = ["folder"]
pytestmark = pytest.mark.timeout(900)


def layout(address: str = "auto", **fleet: Any) -> RunConfig:
    """A trainer rank and engines, with a GPU each; what they compute is no business of these tests."""
    settings = {
        "env": "calculator",
        "trainer": {"name": "fsdp", "ranks": 1, "device": "cuda"},
        "engine": {"name": "tests.cluster.small_server:ENGINE", "device": "cuda"},
        "fleet": {"probe_every": 0.5, **fleet},
        "cluster": {"name": "ray", "address": address},
    }
    return validate(settings, RunConfig)


@pytest.fixture
def gpus(ray_nodes: Any) -> Iterator[str]:
    """The address of a cluster with a node of four GPUs."""
    node = add_node(ray_nodes, num_cpus=4, num_gpus=4)
    yield ray_nodes.address
    ray_nodes.remove_node(node, False)


def test_a_layout_that_the_nodes_have_no_room_for_is_refused_and_a_dry_run_shows_the_places_of_one_that_fits(
    gpus: str, folder: Path
) -> None:
    asked = r"layout=colocated can't be placed\. Asked: trainer: 1 x \(1 GPU\); engine: 2 x \(1 GPU\)"
    fits = r"What would fit: layout=mixed with 1 colocated engines \(fleet\.colocated=true fleet\.colocated_engines=1\)"
    config = layout(gpus, engines=2, colocated=True)
    with cluster.opened(config.cluster, None) as opened, pytest.raises(ConfigError, match=f"{asked}.*{fits}"):
        reserve(opened, config, folder)
    lines = list(described(layout(gpus, engines=2, colocated=True, colocated_engines=1), Rates()))
    places = [line.partition("): ")[2] for line in lines]
    assert {"trainer 0 on GPUs 0", "engine 0 on GPUs 0, colocated", "engine 1 on GPUs 1"} <= set(places)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"fleet": {"engines": 2, "colocated_engines": 1}}, r"needs fleet\.colocated=true"),
        ({"fleet": {"engines": 2, "colocated": True, "colocated_engines": 3}}, r"fleet\.engines=2"),
        ({"fleet": {"engines": 2, "colocated": True}, "rollout": {"staleness": 1}}, r"fleet\.colocated_engines leaves"),
    ],
    ids=str,
)
def test_numbers_of_colocated_engines_that_contradict_others_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        validate({"env": "calculator", **settings}, RunConfig)


def test_with_some_engines_apart_generation_may_go_on_while_the_trainer_learns() -> None:
    fleet = {"engines": 2, "colocated": True, "colocated_engines": 1}
    validate({"env": "calculator", "fleet": fleet, "rollout": {"staleness": 1}}, RunConfig)
