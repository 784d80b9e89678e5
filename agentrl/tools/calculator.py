"""Arithmetic on a model's expressions: exact, and bounded in time and size.

The expression is read as a syntax tree of numbers and operators, never evaluated as Python. Numbers are
fractions, so 0.1 + 0.2 is 0.3 and a chain of divisions loses nothing; they are rounded only when printed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from fractions import Fraction

from agentrl.errors import ToolError
from agentrl.tools.tool import tool

MAX_CHARS = 500
MAX_DEPTH = 100
"""The most levels of nesting; a long sum nests to the left, one level a term."""
MAX_BITS = 4096
"""Bits of a numerator or denominator: over a thousand digits, and still microseconds to multiply."""
DIGITS = 10
"""Significant digits of a result that is no integer."""

_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
    ast.Pow: lambda a, b: _power(a, b),
}


@tool(quick=True)
def calculator(expression: str) -> str:
    """Work out an arithmetic expression.

    Args:
        expression: numbers with + - * / // % ** and brackets, such as (12 + 3) * 4.
    """
    return show(evaluate(expression))


def evaluate(expression: str) -> Fraction:
    """The exact value of an arithmetic expression.

    Raises:
        ToolError: it is no arithmetic, divides by zero, or grows too large; in words for the model.
    """
    if len(expression) > MAX_CHARS:
        raise ToolError(f"the expression has {len(expression)} characters, more than {MAX_CHARS}")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        return _value(tree.body)
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ToolError(f"{expression!r} is not an arithmetic expression") from None


def show(value: Fraction) -> str:
    """A value as text: an integer whole, anything else to ten significant digits.

    Raises:
        ToolError: it has more digits than Python prints.
    """
    if value.denominator == 1:
        return str(value.numerator)
    try:
        text = f"{float(value):.{DIGITS}g}"
    except OverflowError:
        return str(round(value))
    return text if "e" in text else text.rstrip("0").rstrip(".") if "." in text else text


def _value(node: ast.expr, depth_left: int = MAX_DEPTH) -> Fraction:
    if depth_left == 0:
        raise ToolError(f"the expression is nested more than {MAX_DEPTH} deep")
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(Fraction(str(node.value)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand, depth_left - 1)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _value(node.left, depth_left - 1), _value(node.right, depth_left - 1)
        return _bounded(_BINARY[type(node.op)](left, right))
    raise ToolError("only numbers, + - * / // % ** and brackets can be worked out")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ToolError("an exponent must be a whole number")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent) * bits > MAX_BITS and abs(base) != 1:
        raise ToolError("the result of ** is too large")
    if abs(base) == 1:
        exponent = exponent % 2
    return base**exponent.numerator


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ToolError("the result is too large")
    return value
