"""The benchmark of a training step, in its small form."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import training_step


@pytest.mark.slow
@pytest.mark.parametrize("part", ["rows", "optimizer"])
def test_its_sides_compute_the_same(part: str) -> None:
    """Gradients of rows are transformers', updates are those of torch's AdamW. Ranks: tests/train/backends/fsdp."""
    assert training_step.main([part, "--small"]) == 0


def test_rows_that_begin_alike_would_not_be_a_fair_comparison() -> None:
    rows = training_step.Batch(training_step.ragged(8, 256), 512).rows
    assert len({opening[0] for opening, _ in rows}) == len(rows)


def test_an_unknown_part_is_refused_by_its_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        training_step.main(["row"])
    assert "no part is called row: rows, optimizer, fsdp, head" in capsys.readouterr().err
