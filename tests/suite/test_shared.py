"""What workers share is made once, by one of them, and whole when another gets it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.suite.shared import once


def test_of_many_that_ask_at_once_one_makes_it_and_the_others_wait_until_it_is_whole(tmp_path: Path) -> None:
    made, all_ask = list[Path](), threading.Barrier(8)

    def make(folder: Path) -> None:
        made.append(folder)
        for number in range(100):
            (folder / str(number)).write_text("here")

    def ask(_: int) -> int:
        all_ask.wait()
        return len(list(once(tmp_path, "model", make).iterdir()))

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(8))) == [100] * 8
    assert made == [tmp_path / "model"]


@pytest.mark.slow
def test_what_failed_half_way_is_made_again_from_the_beginning(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise ValueError("half of it")

    with pytest.raises(ValueError, match="half of it"):
        once(tmp_path, "model", fail)
    assert list(once(tmp_path, "model", lambda folder: (folder / "whole").touch()).iterdir()) == [
        tmp_path / "model" / "whole"
    ]
