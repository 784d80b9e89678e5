import pytest

from calc import CalcError, evaluate


@pytest.mark.parametrize(
    ("text", "value"),
    [("1+2*3", 7), ("(1+2)*3", 9), ("10-4-3", 3), ("12/4/3", 1), ("2^-1", 0.5), ("-3+5", 2), ("7%4", 3)],
)
def test_values(text, value):
    assert evaluate(text) == value


@pytest.mark.parametrize("text", ["", "1+", "(1", "(1)2", "1/0", "a"])
def test_errors(text):
    with pytest.raises(CalcError):
        evaluate(text)
