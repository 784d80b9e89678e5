import pytest

from sizes import human, parse
from sizes.listing import listing


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0_B"), (999, "999_B"), (1536, "1.5_KiB"), (-2048, "-2.0_KiB"), (5 * 1024**4, "5.0_TiB")]
)
def test_sizes(size, text):
    assert human(size) == text.replace("_", " ")


def test_parsing():
    assert [parse("5"), parse("1.5KiB"), parse("2 kb"), parse("1 MB")] == [5, 1536, 2000, 1000000]
    with pytest.raises(ValueError):
        parse("3 bananas")


def test_a_listing():
    assert listing({"a": 10, "bb": 2048}) == "bb       2.0 KiB\na           10 B\ntotal    2.0 KiB"
