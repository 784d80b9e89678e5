import pytest

from pick import select


def test_a_star_stays_in_its_folder():
    assert select(["a.py", "pkg/b.py"], "*.py") == ["a.py"]


def test_a_star_in_the_middle():
    assert select(["src/a/test.py", "src/test.py", "src/a/b/test.py"], "src/*/test.py") == ["src/a/test.py"]


def test_two_stars_and_a_slash_may_be_nothing():
    assert select(["setup.py", "a/setup.py", "a/b/setup.py"], "**/setup.py") == ["setup.py", "a/setup.py", "a/b/setup.py"]


def test_two_stars_and_a_slash_end_at_a_folder():
    assert select(["notsetup.py", "a/notsetup.py"], "**/setup.py") == []


def test_two_stars_at_the_end():
    assert select(["a/b", "a/b/c", "b"], "a/**") == ["a/b", "a/b/c"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [("[!0-9]*", ["abc", "^x"]), ("[^a]*", ["abc", "^x"]), ("x[!y]z", []), ("[a-c]bc", ["abc"])],
)
def test_classes(pattern, found):
    assert select(["abc", "1bc", "^x", "x/z"], pattern) == found
