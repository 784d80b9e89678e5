"""A file system that is full amid a run: one sentence, nothing half-written is read, the resumed run is the same."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.errors import AgentRLError
from agentrl.train.driver.resuming import whole_checkpoints
from agentrl.train.record.verify import verify
from tests.conftest import need
from tests.records import digits  # noqa: F401  (registers the environment)
from tests.records.test_records import metrics, unpacked
from tests.train.test_survival import SMALL

pytestmark = pytest.mark.slow
SIZE = 4 << 20
BY_TIME = ("time/", "idle/", "throughput/", "stream/", "groups/", "resumed/", "signal/", "count/infra_retries")
"""What a step's metrics have by the clock; the last one counts deadlines that a busy machine missed, here or there."""
FREE = (140, 200, 300, 440, 580)
"""Kibibytes that are free: the run ends in its model, its first checkpoint, its sessions, its log-probabilities."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)], check=False, capture_output=True
        ).returncode
    )
    need(mounted, "root, to mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def result(run: Path) -> tuple[bytes, list[dict[str, Any]]]:
    rows = [{key: value for key, value in row.items() if not key.startswith(BY_TIME)} for row in metrics(run)]
    return (whole_checkpoints(run)[-1] / "model.safetensors").read_bytes(), rows


def test_a_run_whose_disk_was_full_anywhere_goes_on_as_if_it_had_not_been(disk: Path, tmp_path: Path) -> None:
    shutil.copytree(unpacked("63b9345", "sync", tmp_path / "recorded") / "model", tmp_path / "base")
    rollout = {**SMALL["rollout"], "staleness": 0}
    own = {"model": str(tmp_path / "base"), "rollout": rollout, "steps": 2, "record_logprobs": True}
    settings: dict[str, Any] = {**SMALL, **own, "env": "digits"}
    agentrl.train(**settings, run_dir=str(tmp_path / "whole"))
    for free in FREE:
        run = disk / f"run-{free}"
        (disk / "filler").write_bytes(bytes(shutil.disk_usage(disk).free - free * 1024))
        with pytest.raises(AgentRLError, match=r"full|No space|disk I/O|MiB free") as refused:
            agentrl.train(**settings, run_dir=str(run))
        assert "\n" not in str(refused.value)
        (disk / "filler").unlink()
        agentrl.train(**({"resume": str(run)} if (run / "config.yaml").exists() else {**settings, "run_dir": str(run)}))
        assert result(run) == result(tmp_path / "whole"), free
        assert verify(run).passed
        assert not [*run.rglob("*partial*")]
        shutil.rmtree(run)
