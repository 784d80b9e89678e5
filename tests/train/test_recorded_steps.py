"""The steps after a run's newest checkpoint are trained again as they are recorded, or their weights are lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from agentrl.sessions.store.store import Store
from agentrl.train.record import ledger
from tests.train.test_rerun import SETTINGS, WORLD, train

WEIGHTS = Path("checkpoints/step-000005/model.safetensors")


def forget(run: Path, *steps: int) -> None:
    """Remove checkpoints, as if the run had ended before they were due."""
    for step in steps:
        shutil.rmtree(run / "checkpoints" / f"step-{step:06d}")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_steps_after_a_checkpoint_come_from_the_record_and_with_other_settings_are_lost_and_counted(
    tmp_path: Path,
) -> None:
    run, world = tmp_path / "run", tmp_path / "world.py"
    world.write_text(WORLD)
    often = {"checkpoint_every": 2, "keep_checkpoints": 9, "steps": 5, "engine.process": "shared"}
    train(**{"env": f"{world}:Dense", **SETTINGS, **often, "run_dir": str(run)})
    files = [run / "metrics.jsonl", run / ledger.NAME, run / WEIGHTS]
    recorded = [file.read_bytes() for file in files]

    forget(run, 4, 5)
    _, shown = train(resume=str(run))
    assert "trained again as they are recorded" in shown
    assert [file.read_bytes() for file in files] == recorded, "a step was taken anew, or came out otherwise"

    forget(run, 5)
    _, shown = train(**{"resume": str(run), "algo.lr": 2e-3})
    assert "are lost" in shown
    rows = [json.loads(line) for line in files[0].read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert files[0].read_bytes().splitlines()[:2] == recorded[0].splitlines()[:2]
    assert sum(row.get("resumed/taken", 0) + row.get("resumed/lost", 0) for row in rows) > 0
    assert files[2].read_bytes() != recorded[2]
    assert list(ledger.faults(run)) == []
    with Store(run / "sessions.db", read_only=True) as store:
        spans = {s for session in store.sessions() for node in session.nodes for s in node.versions}
    lives = {span.version: {s.incarnation for s in spans if s.version == span.version} for span in spans}
    assert max(lives) == 5
    assert lives == {version: {int(version > 2)} for version in lives}, "the checkpoint is that of step 2"
