"""A copy of the package and its tests to plant faults in; the working tree is never changed.

A copy, and no patch of modules as they are imported, because a fault must also be there in the processes that a test
starts, whichever way they import the package.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.planted import seeds
from tests.planted.fault import ROOT, Fault

COPIED = ("agentrl", "tests")
LEFT = (".git", ".hypothesis", ".pytest_cache")
FIRST_TIME = 2_000_000_000
"""Bytecode is valid for a source's time of change in whole seconds: each planted source gets one of its own."""


@dataclass(frozen=True)
class Found:
    """How often a test failed, of how many times; in which example at the latest (0: none are counted)."""

    failed: int
    times: int
    example: int


class Broken(Exception):
    """The test did not run, or fails without a fault."""


class Scratch:
    """A copy of the tree in a folder, for one fault at a time."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self._planted = 0
        self.root.mkdir()
        for path in ROOT.iterdir():
            if path.name in COPIED:
                shutil.copytree(path, self.root / path.name, symlinks=True)
            elif path.is_file():
                shutil.copy2(path, self.root / path.name)
            elif path.name not in LEFT:
                (self.root / path.name).symlink_to(path)
        if (shared := ROOT.parent / "shared").exists():
            (folder / "shared").symlink_to(shared)

    def try_fault(self, fault: Fault, times: int, timeout: float) -> Found:
        """Plant a fault, run its test, and take the fault out again.

        Raises:
            NoLongerApplies: it can't be planted.
            Broken: the test did not run.
        """
        file = fault.file(self.root)
        kept = file.stat(), file.read_bytes()
        file.write_text(fault.planted(self.root))
        self._planted += 1
        os.utime(file, (FIRST_TIME + self._planted,) * 2)
        try:
            return self.run(fault.test, times, timeout)
        finally:
            file.write_bytes(kept[1])
            os.utime(file, ns=(kept[0].st_atime_ns, kept[0].st_mtime_ns))

    def run(self, test: str, times: int, timeout: float) -> Found:
        """Run a test as it stands in the copy; one that hangs has failed."""
        result = self.root.parent / "result.json"
        result.unlink(missing_ok=True)
        shutil.rmtree(self.root / ".hypothesis", ignore_errors=True)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
            "PYTHONPATH": str(self.root),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self.root / ".hypothesis"),
            seeds.TIMES: str(times),
            seeds.RESULT: str(result),
        }
        command = [sys.executable, "-m", "pytest", "-p", "tests.planted.seeds", "-p", "no:cacheprovider"]
        command += [f"--timeout={timeout}", "--tb=short", test]
        done = subprocess.run(command, cwd=self.root, env=environment, text=True, capture_output=True)
        outcomes = json.loads(result.read_text()) if result.exists() else []
        if len(outcomes) != times:
            raise Broken(f"{test} did not run (exit code {done.returncode}):\n{done.stdout[-3000:]}")
        examples = [example for example in outcomes if example is not None]
        return Found(len(examples), times, max(examples, default=0))
