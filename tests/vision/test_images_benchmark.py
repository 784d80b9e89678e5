"""The comparison of a forest with rows that share an image comes to its end."""

from __future__ import annotations

import pytest

from benchmarks import images


@pytest.mark.slow
def test_a_forest_and_rows_of_one_image_have_the_same_log_probabilities(capsys: pytest.CaptureFixture[str]) -> None:
    images.main(["--small", "--times", "1"])
    assert "20 tokens as a forest, 32 as rows; 16 patches once" in capsys.readouterr().out
