"""Files as import paths."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from agentrl.imports import load

MADE = """
import json

import beside_of_this_test


def make():
    import later_of_this_test

    return beside_of_this_test.VALUE, later_of_this_test.VALUE, json
"""


def test_a_file_imports_what_lies_beside_it_when_it_likes_and_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "made.py").write_text(MADE)
    (tmp_path / "beside_of_this_test.py").write_text("VALUE = 1")
    (tmp_path / "later_of_this_test.py").write_text("VALUE = 2")
    (tmp_path / "json.py").write_text("raise AssertionError")
    for _ in range(2):
        assert load(f"{tmp_path / 'made.py'}:make", "env")() == (1, 2, json)
    assert sys.path.count(str(tmp_path)) == 1
