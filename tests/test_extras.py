"""What an installation with one extra can do: a folder with the packages that it brings, and no others."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
COMMAND = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from agentrl.__main__ import main
main()
"""


def installed_with(extra: str) -> set[str]:
    """The distributions that come with the package and an extra, by what each says that it needs."""
    seen, waiting = set[tuple[str, str]](), [("agentrl-platform", extra), ("agentrl-platform", "")]
    while waiting:
        name, chosen = waiting.pop()
        if (name, chosen) in seen:
            continue
        try:
            needs = distribution(name).requires or []
        except PackageNotFoundError:  # of another platform
            continue
        seen.add((name, chosen))
        for need in map(Requirement, needs):
            if need.marker is None or need.marker.evaluate({"extra": chosen}):
                waiting += [(need.name, each) for each in ("", *need.extras)]
    return {name for name, _ in seen}


def only(extra: str, folder: Path) -> Path:
    """A folder to import from: links to what these distributions installed, and to this checkout's package."""
    folder.mkdir()
    (folder / "agentrl").symlink_to(ROOT / "agentrl")
    for each in map(distribution, installed_with(extra) - {"agentrl-platform"}):
        for entry in {file.parts[0] for file in each.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (folder / entry).exists():
                (folder / entry).symlink_to(str(each.locate_file(entry)))
    return folder


@pytest.mark.slow
def test_a_run_needs_no_package_that_the_extra_train_does_not_bring(tmp_path: Path) -> None:
    """A session's state was stored by a package of the gateway's: a run without it ended in its first turn."""
    packages = only("train", tmp_path / "packages")
    there = {path.name for path in packages.iterdir()}
    assert {"torch", "transformers"} <= there
    assert not {"fastapi", "ray", "docker", "pyarrow", "pytest"} & there
    words = ["train", "env=calculator", "steps=1", "warm_start.steps=1", "warm_start.demos=16", "run_dir=run"]
    words += ["rollout.groups_per_step=2", "rollout.group_size=2", "eval.tasks=2", "eval.n=1", "allow_no_signal=true"]
    command = [sys.executable, "-I", "-S", "-c", COMMAND, str(packages), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
