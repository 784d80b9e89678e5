"""What other programs leave in folders that a whole machine shares is no leak of the environment under check."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.envs.check import resources

OPEN = "import mmap, sys; held = open(sys.argv[1], 'w+b'); held.write(b' '); held.flush()"
MAPPED = f"{OPEN}; kept = mmap.mmap(held.fileno(), 1); held.close()"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="nothing tells here what other programs use")
@pytest.mark.parametrize("program", [OPEN, MAPPED])
def test_a_file_counts_unless_another_program_uses_it(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "SHARED", {"shared memory segment": str(tmp_path)})
    # begun by a program that has ended, so that it is no child of this process
    command = ["setsid", "-f", sys.executable, "-c", f"{program}; print(flush=True); input()", str(tmp_path / "theirs")]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    (tmp_path / "ours").write_bytes(b" ")

    async def left_in(there: set[str]) -> frozenset[str]:
        before = {**resources.held(), "shared memory segment": frozenset(there)}
        return (await resources.left_since(before, settle=0))["shared memory segment"]

    assert asyncio.run(left_in(set())) == {"ours"}
    other.communicate()
    assert asyncio.run(left_in({"ours"})) == {"theirs"}
