"""The benchmarks of images come to their ends: a forest beside rows that share an image, and what is held of images."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.models import tiny
from benchmarks import image_memory, images, pixels


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


@pytest.mark.slow
def test_a_language_model_that_got_a_tower_learns_from_pixels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tiny.render([{"role": "user", "content": "Where is it?"}, {"role": "assistant", "content": "1 = top left"}])
    language = tiny.build(tmp_path / "language", [text] * 9)
    assert pixels.main(["--small", "--model", str(language)]) == 0
    assert "after 1 steps of imitation" in (shown := capsys.readouterr().out)
    assert "blind at most 0.3" in shown
