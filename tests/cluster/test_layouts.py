"""Layouts on real Ray nodes, one of which declares GPUs: who shares which, who sleeps, and what is refused."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl import cluster
from agentrl.cluster import Resources, Role
from agentrl.config import RunConfig, WeightsConfig
from agentrl.errors import ConfigError
from agentrl.overrides import validate
from agentrl.rollout.fleet import make_engines
from agentrl.rollout.fleet.fleet import Fleet
from agentrl.rollout.fleet.member import MemberState
from agentrl.train.plan.dry_run import describe_run
from agentrl.train.plan.placing import reserve
from agentrl.train.plan.step import Rates
from tests.cluster.conftest import add_node, remove_node
from tests.cluster.test_servers import folder, generated
from tests.rollout.fleet.test_fleet import until

__all__ = ["folder"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LONG = 300.0
RANK = Role("trainer", "tests.cluster.roles:Counter", (0,), threads=1, resources=Resources(gpus=1))


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
    node = add_node(ray_nodes, num_cpus=4, num_gpus=4, resources={"accelerator_type:H100": 1})
    yield ray_nodes.address
    remove_node(ray_nodes, node)


def seen(process: int) -> set[str]:
    """The GPUs that a process sees."""
    variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    (found,) = (each for each in variables if each.startswith(b"CUDA_VISIBLE_DEVICES="))
    return set(found.decode().partition("=")[2].split(","))


async def servers(fleet: Fleet) -> list[int]:
    """The process of each engine's server."""
    return [await generated(member.engine) for member in fleet.engines.values()]


def calls(logs: Path) -> list[list[str]]:
    """What each server was asked for, of what this is about, in order."""
    kinds = ("_occupation", "from_disk", "continue_generation")
    return [[word for word in log.read_text().split() if word.endswith(kinds)] for log in logs.glob("engine-*.log")]


async def test_a_colocated_engine_is_on_the_trainers_gpus_and_sleeps_while_the_others_go_on(
    gpus: str, folder: Path, tmp_path: Path
) -> None:
    config = layout(gpus, engines=2, colocated=True, colocated_engines=1)
    with cluster.open_cluster(config.cluster, tmp_path) as opened:
        reserve(opened, config.cluster, config.learners, config.policies, folder)
        (rank,) = opened.spawn_together([RANK], 1)
        rank.wait_ready(LONG)
        of_trainer = {rank.run("gpus", timeout=LONG)}
        fleet = make_engines(config.engine, config.fleet, WeightsConfig(verify=False), folder)
        assert isinstance(fleet, Fleet)
        await fleet.start()
        before = await servers(fleet)
        colocated, apart = map(seen, before)
        assert (len(colocated), len(apart)) == (1, 1)
        assert colocated == of_trainer != apart
        assert {member.managed.node for member in fleet.engines.values()} == {rank.node}

        first = {member.start for member in fleet.engines.values()}
        for process in before:
            os.kill(process, signal.SIGKILL)
        await until(lambda: all(m.start not in first and m.state is MemberState.READY for m in fleet.engines.values()))
        after = await servers(fleet)
        assert list(map(seen, after)) == [colocated, apart]

        await fleet.sleep()
        assert {await generated(fleet) for _ in range(3)} == {after[1]}
        await fleet.wake()
        assert await generated(fleet) == after[1]
        await fleet.publish([("weight", torch.zeros(1))], 1)
        assert {member.state for member in fleet.engines.values()} == {MemberState.READY}
        await fleet.close()
        rank.shutdown()
    taking_turns = ["/release_memory_occupation", "/resume_memory_occupation"]
    loading = ["/update_weights_from_disk", "/continue_generation"]
    assert sorted(calls(tmp_path)) == sorted([[], [], loading, [*taking_turns, *loading]])


def test_a_layout_that_the_nodes_have_no_room_for_is_refused_and_a_dry_run_shows_the_places_of_one_that_fits(
    gpus: str, folder: Path
) -> None:
    asked = r"layout=colocated can't be placed\. Asked: trainer: 1 x \(1 GPU\); engine: 2 x \(1 GPU\)"
    fits = r"What would fit: layout=mixed with 1 colocated engines \(fleet\.colocated=true fleet\.colocated_engines=1\)"
    config = layout(gpus, engines=2, colocated=True)
    soon = config.cluster.model_copy(update={"place_timeout": 0.1})  # nodes that are to join are waited for
    config = config.model_copy(update={"cluster": soon})
    with cluster.open_cluster(config.cluster, None) as opened, pytest.raises(ConfigError, match=f"{asked}.*{fits}"):
        reserve(opened, config.cluster, config.learners, config.policies, folder)
    lines = list(describe_run(layout(gpus, engines=2, colocated=True, colocated_engines=1), Rates()))
    places = [line.partition("): ")[2] for line in lines]
    assert {"trainer 0 on GPUs 0", "engine 0 on GPUs 0, colocated", "engine 1 on GPUs 1"} <= set(places)
    memory = [line.partition("), ")[2] for line in lines if line.startswith("memory of ") and " GPUs " in line]
    assert [line.partition(":")[0] for line in memory] == ["GPUs 0", "GPUs 1"]
    assert "which sleep while it computes" in memory[0]
    assert all(line.endswith("; of 79 GiB") for line in memory)


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
