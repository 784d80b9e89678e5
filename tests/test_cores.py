"""Which cores a process may keep busy, and who gets how many of them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.common import cores
from agentrl.config import FleetConfig
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.rollout.fleet import divide_cores


@pytest.fixture
def four(allow_cores: Callable[[int], None]) -> None:
    """Four cores, and nothing in the environment."""
    allow_cores(4)


@pytest.fixture
def set_threads(four: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has the user's environment say how many threads there are to be."""
    return lambda value: monkeypatch.setenv(cores.VARIABLE, value)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """The folder of a model that is not small; the file has no content on the disk."""
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.truncate(cores.SMALL_BYTES)
    return tmp_path


@pytest.mark.slow
def test_affinity_limits_what_may_be_used() -> None:
    cpu = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{cpu}]); from agentrl.common import cores; print(cores.list_allowed())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"[{cpu}]\n", done.stderr


def test_hardware_threads_of_one_core_count_once(tmp_path: Path) -> None:
    for cpu in range(8):
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "topology" / "physical_package_id").write_text(f"{cpu % 4 // 2}\n")
        (tmp_path / f"cpu{cpu}" / "topology" / "core_id").write_text(f"{cpu % 2}\n")
    assert cores.choose_one_each({0, 1, 2, 3, 6}, math.inf, tmp_path) == [0, 1, 2, 3]
    assert cores.choose_one_each({1, 5, 7, 3}, math.inf, tmp_path) == [1, 3]


@pytest.mark.parametrize(("quota", "count"), [(0.5, 1), (2.0, 2), (2.9, 2), (math.inf, 4)])
def test_a_quota_limits_them_further_and_leaves_one(quota: float, count: int, tmp_path: Path) -> None:
    assert len(cores.choose_one_each({0, 1, 2, 3}, quota, tmp_path / "no system says it")) == count


@pytest.mark.parametrize(
    ("mine", "files", "quota"),
    [
        ("0::/a/b", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, 1.5),
        ("0::/a/b", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "50000 100000"}, 0.5),
        ("0::/", {"cpu.max": "400000 100000"}, 4.0),
        ("0::/elsewhere", {"cpu.max": "300000 100000"}, 3.0),  # a container's own view begins at its root
        ("5:memory:/x\n1:cpu:/a\n0::/", {"cpu/a/cpu.cfs_quota_us": "250000", "cpu/a/cpu.cfs_period_us": "100000"}, 2.5),
        ("1:cpu,cpuacct:/", {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, None),
        ("", {}, None),
    ],
)
def test_quotas_of_both_versions_of_control_groups_are_found(
    mine: str, files: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text + "\n")
    (tmp_path / "mine").write_text(mine + "\n" if mine else "")
    assert cores.quota(tmp_path / "root", tmp_path / "mine") == (math.inf if quota is None else quota)


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize(
    ("name", "engines", "server", "threads"),
    [
        ("sglang", 1, {}, 4),
        ("sglang", 2, {}, 2),
        ("sglang", 2, {"tp_size": 2}, 1),
        ("sglang", 8, {}, 1),
        ("vllm", 2, {}, 1),  # its scheduler keeps a core busy
        ("vllm", 1, {}, 3),
        ("local", 2, {}, 2),
    ],
)
def test_engines_that_generate_at_the_same_time_share_the_cores(
    name: str, engines: int, server: dict[str, Any], threads: int, large: Path
) -> None:
    config = ServerConfig(name=name, device="cpu", server=server)
    assert [one.threads for one in divide_cores(config, FleetConfig(engines=engines), large)] == [threads] * engines


@pytest.mark.usefixtures("four")
def test_servers_that_bind_their_threads_are_given_cores_of_their_own(large: Path) -> None:
    config = ServerConfig(name="sglang", device="cpu")
    assert [one.cores for one in divide_cores(config, FleetConfig(engines=2), large)] == ["0,1", "2,3"]
    config = ServerConfig(name="sglang", device="cpu", server={"tp": 2})
    assert [one.cores for one in divide_cores(config, FleetConfig(engines=2), large)] == ["0|1", "2|3"]
    assert [one.cores for one in divide_cores(config, FleetConfig(), large)] == [None]


@given(count=st.integers(1, 9), size=st.integers(1, 6), cpus=st.sets(st.integers(0, 99), min_size=1, max_size=12))
@pytest.mark.slow
def test_blocks_are_disjoint_where_there_are_enough_cores(count: int, size: int, cpus: set[int]) -> None:
    blocks = [block.split(",") for block in cores.blocks(count, size, sorted(cpus))]
    assert all(len(set(block)) == len(block) == min(size, len(cpus)) for block in blocks)
    if count * size <= len(cpus):
        assert len({cpu for block in blocks for cpu in block}) == count * size


@pytest.mark.usefixtures("four")
def test_a_small_model_is_computed_by_one_thread(tmp_path: Path, large: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "model.safetensors").write_bytes(b"1234")
    assert (cores.share(1, tmp_path / "small"), cores.share(1, large)) == (1, 4)


@pytest.mark.usefixtures("four")
def test_engines_and_a_trainer_that_compute_at_once_get_half_of_the_cores_each(large: Path) -> None:
    with cores.at_once(2):
        assert (cores.share(1, large), cores.share(2, large), cores.share(8, large)) == (2, 1, 1)
    assert cores.share(1, large) == 4


def test_a_setting_goes_before_the_users_environment_and_that_before_the_share(
    large: Path, set_threads: Callable[[str], None]
) -> None:
    config, fleet = ServerConfig(name="sglang", device="cpu"), FleetConfig(engines=2)
    set_threads("3")
    assert divide_cores(config, fleet, large)[0].threads is None
    assert cores.environment(None)[cores.VARIABLE] == "3"
    assert divide_cores(config.model_copy(update={"threads": 5}), fleet, large)[0].threads == 5


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize("settings", [{"url": "http://a:1"}, {"device": "cuda"}])
def test_what_does_not_compute_on_these_cores_gets_no_number_of_threads(settings: dict[str, Any], large: Path) -> None:
    assert divide_cores(ServerConfig(name="sglang", **settings), FleetConfig(), large)[0].threads is None


@pytest.mark.usefixtures("four")
@pytest.mark.slow
def test_tools_and_the_programs_that_they_start_get_one_thread_and_the_user_gets_his_own_back() -> None:
    code = (
        "import os, subprocess, sys, torch\n"
        "from agentrl.common import cores\n"
        "torch.set_num_threads(3)\n"
        "child = [sys.executable, '-c', 'import os; print(os.environ[\"OMP_NUM_THREADS\"])']\n"
        "with cores.one_each():\n"
        "    print(torch.get_num_threads(), subprocess.check_output(child, text=True).strip())\n"
        "    print(cores.choose_threads(None, 4))\n"
        "    with cores.computing(2): print(torch.get_num_threads())\n"
        "print(torch.get_num_threads(), os.environ.get('OMP_NUM_THREADS'))\n"
    )
    env = {name: value for name, value in os.environ.items() if name != cores.VARIABLE}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=env)
    assert done.stdout.split() == ["1", "1", "4", "2", "3", "None"], done.stderr


@pytest.mark.usefixtures("four")
def test_a_server_without_settings_does_not_inherit_the_tools_environment() -> None:
    """On a GPU servers choose for themselves; a run's own 1 would have been taken for the user's."""
    with cores.one_each():
        assert cores.VARIABLE not in cores.environment(None)
        assert cores.environment(4)[cores.VARIABLE] == "4"


def test_what_the_user_set_stands(set_threads: Callable[[str], None]) -> None:
    set_threads("7")
    with cores.one_each():
        assert os.environ[cores.VARIABLE] == "7"
        assert cores.choose_threads(None, 2) is None
    assert os.environ[cores.VARIABLE] == "7"


@pytest.mark.slow
def test_a_run_says_who_computes_with_how_many(set_threads: Callable[[str], None]) -> None:
    line = cores.describe_threads({"engine=sglang (2 of them)": 2, "trainer=torch": 4})
    assert line is not None
    assert line.startswith("CPU threads: engine=sglang (2 of them) 2, trainer=torch 4; 4 cores may be used (")
    assert cores.describe_threads({"engine=sglang": None, "trainer=torch": None}) is None  # on a GPU
    set_threads("1")
    assert "engine=sglang 1" in str(cores.describe_threads({"engine=sglang": None}))
    assert "OMP_NUM_THREADS is set" in str(cores.describe_threads({"engine=sglang": None}))
