"""The page on security names every list of attacks, the tests that run it, and no test that is not there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.redteam.catalogue import CATALOGUE
from tests.redteam.test_catalogue import functions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "redteam.md").read_text()
ROW = re.compile(r"^\| (.+?) \| (\w+) \| .+? \| (`tests/.+?`) \|$", re.MULTILINE)


def test_it_has_a_row_for_every_list_with_its_kind_and_its_tests() -> None:
    rows = {against: (kind, tuple(re.findall("`(.+?)`", tests))) for against, kind, tests in ROW.findall(PAGE)}
    assert rows == {against: (target.kind, target.tests) for against, target in CATALOGUE.items()}


def test_what_it_names_is_there() -> None:
    for name in re.findall(r"`(tests/[^`]+)`", PAGE):
        file, _, test = name.partition("::")
        assert (ROOT / file).exists(), name
        assert not test or test in functions(file), name
