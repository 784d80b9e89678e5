"""The benchmarks of images come to their ends: a forest beside rows that share an image, and what is held of images."""

from __future__ import annotations

import pytest

from benchmarks import image_memory, images


@pytest.mark.slow
def test_a_forest_and_rows_of_one_image_have_the_same_log_probabilities(capsys: pytest.CaptureFixture[str]) -> None:
    images.main(["--small", "--times", "1"])
    assert "20 tokens as a forest, 32 as rows; 16 patches once" in capsys.readouterr().out


@pytest.mark.slow
def test_a_store_holds_each_image_once_and_a_run_lets_images_go(capsys: pytest.CaptureFixture[str]) -> None:
    """It ends with 1 where an image is stored twice, or where memory grows from step to step."""
    image_memory.main(["--images", "15", "--steps", "5"])
    shown = capsys.readouterr().out
    assert "15 images, each in two sessions: 15 files, 2 sets of pixels" in shown
    assert "5 steps: " in shown
