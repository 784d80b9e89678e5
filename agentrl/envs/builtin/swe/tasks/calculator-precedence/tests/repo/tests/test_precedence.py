import pytest

from calc import evaluate
from calc.__main__ import main


@pytest.mark.parametrize(
    ("text", "value"),
    [("-2^2", -4), ("2^3^2", 512), ("(-2)^2", 4), ("2^-2^2", 0.0625), ("-2*-3", 6), ("--2^2", 4), ("1-2^2", -3)],
)
def test_powers_and_signs(text, value):
    assert evaluate(text) == value


def test_left_to_right_elsewhere():
    assert evaluate("100/10/5-1-1") == 0


def test_a_sign_before_a_product():
    assert evaluate("-2*3+10") == 4


def test_the_command_line(capsys):
    assert main(["-2", "^", "2"]) == 0
    assert capsys.readouterr().out == "-4\n"
