"""The machines of a cluster are tried before a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import ClusterConfig, GatewayConfig
from agentrl.train.plan.doctor import MOST_PAIRS, DoctorConfig, DoctorReport, Equipment, Probe, examine
from agentrl.train.plan.gateway_probe import pairs_of
from tests.cluster.test_programs import certificate
from tests.tools.sandbox.conftest import TINY, docker

__all__ = ["docker"]


@pytest.mark.slow
def test_every_node_of_a_ray_cluster_says_what_it_has_and_reaches_the_others(ray_nodes: Any, tmp_path: Path) -> None:
    config = ClusterConfig(name="ray", address=ray_nodes.address, encrypted=True)
    gateway = GatewayConfig(host="node", **certificate(ray_nodes.address.partition(":")[0], tmp_path))
    found = examine(DoctorConfig(cluster=config, folder=tmp_path / "runs", megabytes=1, gateway=gateway))
    assert found.problems == []
    assert len(found.nodes) == 2
    assert all(node.cpus > 0 and node.memory > 0 and node.free for node in found.nodes.values())
    one, other = found.nodes
    assert found.links.keys() == {(one, other), (other, one)}
    assert all(rate > 0 for rate in found.links.values())
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.slow
def test_a_node_that_does_not_see_the_shared_files_is_noticed(tmp_path: Path) -> None:
    """Another file of the same name is as good as none."""
    file = tmp_path / "file"
    assert Probe().equipment(str(file), b"content").free is None
    file.write_bytes(b"another's")
    assert Probe().equipment(str(file), b"content").free is None
    file.write_bytes(b"content")
    assert Probe().equipment(str(file), b"content").free is not None


@pytest.mark.slow
def test_images_are_looked_up_on_the_nodes_with_docker(docker: None, tmp_path: Path) -> None:
    found = examine(DoctorConfig(folder=tmp_path, images=(TINY.image, "agentrl/none:such"), megabytes=1))
    assert found.problems == ["no node has the image 'agentrl/none:such'"]
    assert found.sent == []


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_named_beside_what_else_the_machine_lacks(tmp_path: Path) -> None:
    """It was all that was told: a machine with a full disk got no word about its driver."""
    (tmp_path / "file").touch()
    found = examine(DoctorConfig(folder=tmp_path / "file"))
    assert re.match(r"folder='.*file' can't be written: .*; folder=… tries another", found.problems[0])
    assert len(found.features) > 10


def test_a_report_names_each_problem_or_says_that_there_is_none() -> None:
    equipment = Equipment(8, 64 << 30, ["H100, 80 GiB"] * 2, docker=False, free=None)
    report = DoctorReport({"a": equipment}, {("a", "b"): 1.5e9}, ["b does not answer"])
    assert list(report.lines()) == [
        "a: 8 CPUs, 64 GiB, 2 x H100, 80 GiB; no Docker; does not see the folder",
        "a -> b: 1.5 GB/s",
        "problem: b does not answer",
    ]
    assert list(DoctorReport().lines()) == ["nothing stands in the way of a run"]


def test_links_between_many_nodes_are_measured_from_each_to_the_next() -> None:
    few, many = [str(n) for n in range(8)], [str(n) for n in range(20)]
    assert len(pairs_of(few, MOST_PAIRS)) == MOST_PAIRS
    assert [set(pair) for pair in zip(*pairs_of(many, MOST_PAIRS), strict=True)] == [set(many)] * 2
