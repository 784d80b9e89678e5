"""Which modules `make check` does not import."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.suite.quick import has_nothing

SLOW = "@pytest.mark.slow\nasync def test_a() -> None: ...\n"
CASES = "@pytest.mark.parametrize(\n    'n',\n    [1, 2],\n)\n"


@pytest.mark.parametrize(
    ("text", "nothing"),
    [
        ("def test_a(): ...\n", False),
        ("pytestmark = pytest.mark.slow\ndef test_a(): ...\n", True),
        ("pytestmark = [pytest.mark.slow, pytest.mark.timeout(9)]\ndef test_a(): ...\n", True),
        ('pytestmark = [pytest.mark.usefixtures("docker"), pytest.mark.slow]\ndef test_a(): ...\n', True),
        ("pytestmark = [\n    pytest.mark.timeout(9),\n    pytest.mark.slow,\n]\ndef test_a(): ...\n", True),
        ("pytestmark = [pytest.mark.timeout(9)]\n\n@pytest.mark.slow\ndef test_a(): ...\ndef test_b(): ...\n", False),
        ("pytestmark = pytest.mark.timeout(9)\ndef test_a(): ...\n", False),
        (SLOW, True),
        (SLOW + "TestAnyOrder = Machine.TestCase\n", False),
        ("TestAnyOrder = Machine.TestCase\n", False),
        (SLOW + "def help(): ...\n\n\ndef test_b(): ...\n", False),
        (SLOW + CASES + "def test_b(n): ...\n", False),
        (SLOW + "@pytest.mark.slow\n" + CASES + "def test_b(n): ...\n", True),
        (SLOW + CASES.replace("2]", "pytest.param(2, marks=pytest.mark.slow)]") + "def test_b(n): ...\n", False),
    ],
)
def test_a_module_is_left_out_only_if_each_of_its_tests_is_slow(text: str, nothing: bool, tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(text)
    assert has_nothing(file, "not slow and not hub") == nothing
    assert not has_nothing(file, "")
    assert not has_nothing(tmp_path / "conftest.py", "not slow")
