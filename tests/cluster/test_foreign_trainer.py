"""A trainer from outside the package on two Ray nodes: as one process, and with ranks that only the driver reaches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.plugins.trainer import Split, TrainerConfig
from agentrl.train.record import provenance
from examples.plugins.row_trainer import RowPlugin
from tests.cluster.test_run import require_same, run
from tests.train import test_plugins

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SETTINGS: dict[str, Any] = {
    "env": f"{test_plugins.__file__}:Parity",
    "algo": {"kl_coef": 0.0, "lr": 1e-3, "epochs": 2},
    "rollout": {"groups_per_step": 4, "group_size": 2, "turn_tokens": 6},
    "warm_start": {"steps": 0},
    "eval": {"tasks": 1},
}


class RanksConfig(TrainerConfig):
    """Settings of the trainer below."""

    ranks: int = 2
    """How many ranks it says that it has."""


class RanksPlugin(RowPlugin):
    """The trainer of one file, in the driver, as one whose ranks no other process reaches."""

    settings = RanksConfig
    has_ranks = True

    def split(self, config: RanksConfig, model: Any, gpus: int) -> Split:
        """Data-parallel ranks."""
        return Split(data=config.ranks)


ROWS, RANKS = RowPlugin(), RanksPlugin()


def trained(folder: Path) -> list[tuple[int, Any]]:
    return [(step, found) for step, found in provenance.read(folder) if isinstance(found, provenance.Trained)]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder and the result of the run in one process."""
    folder = tmp_path_factory.mktemp("runs") / "local"
    return folder, run(folder, **SETTINGS, trainer={"name": f"{__file__}:ROWS", "device": "cpu"})


@pytest.mark.parametrize(("trainer", "driver_reads"), [("ROWS", False), ("RANKS", True)])
def test_it_learns_on_a_cluster_as_in_one_process_and_with_ranks_of_its_own_the_driver_does(
    trainer: str,
    driver_reads: bool,
    ray_nodes: Any,
    here: tuple[Path, Any],
    tmp_path: Path,
    loaded_sessions: list[str],
) -> None:
    """A trainer with ranks that was no `Leasable` ended its run's first step with an AssertionError."""
    cluster = {"name": "ray", "address": ray_nodes.address, "environments": 1}
    chosen = {"name": f"{__file__}:{trainer}", "device": "cpu"}
    there = run(tmp_path / "ray", **SETTINGS, trainer=chosen, cluster=cluster, fleet={"engines": 2})
    assert any(name.startswith("train") for name in loaded_sessions) == driver_reads
    require_same(tmp_path / "ray", there, here)
    assert trained(tmp_path / "ray") == trained(here[0]) != []
    assert any(row["grad_norm"] > 0 for row in there.metrics)
