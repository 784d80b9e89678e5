"""The small form of `benchmarks.evaluation`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import evaluation


@pytest.mark.slow
def test_a_suite_that_is_killed_and_given_again_has_every_samples_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluation.kill(40, 0.02)
    assert "40 of 40 results" in capsys.readouterr().out


def test_a_side_that_fails_is_no_figure(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"failed:\nno such thing"):
        evaluation.timed([sys.executable, "-c", "raise SystemExit('no such thing')"], str(tmp_path))
