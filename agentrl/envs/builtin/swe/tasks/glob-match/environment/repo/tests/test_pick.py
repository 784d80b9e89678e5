import pytest

from pick import select

PATHS = ["src/a.py", "src/b.txt", "src/deep/c.py", "docs/x-1.md"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("src/?.py", ["src/a.py"]),
        ("**.py", ["src/a.py", "src/deep/c.py"]),
        ("src/[ab].{py,txt}", ["src/a.py", "src/b.txt"]),
        ("docs/x-[0-9].md", ["docs/x-1.md"]),
        ("src/a+py", []),
    ],
)
def test_patterns(pattern, found):
    assert select(PATHS, pattern) == found


def test_a_removal():
    assert select(PATHS, "**", "-**.py") == ["src/b.txt", "docs/x-1.md"]
