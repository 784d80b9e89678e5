"""Precedence climbing: an operator's right side is everything that binds tighter than it does."""

import operator

from calc.lexer import tokens


class CalcError(ValueError):
    """Not a sum."""


# symbol: (binding power, right-associative, function)
BINARY = {
    "+": (10, False, operator.add),
    "-": (10, False, operator.sub),
    "*": (20, False, operator.mul),
    "/": (20, False, operator.truediv),
    "%": (20, False, operator.mod),
    "^": (30, False, operator.pow),
}
SIGN = 40
SIGNS = {"+": operator.pos, "-": operator.neg}


class Parser:
    def __init__(self, text):
        self.left = tokens(text)[::-1]

    def peek(self):
        return self.left[-1] if self.left else None

    def take(self):
        if not self.left:
            raise CalcError("the sum ends too early")
        return self.left.pop()

    def expression(self, power=0):
        """The value of an expression whose operators all bind at least as tight as `power`."""
        value = self.operand()
        while (symbol := self.peek()) in BINARY:
            binding, right, function = BINARY[symbol]
            if binding < power:
                break
            self.take()
            value = self.apply(function, value, self.expression(binding + 1))
        return value

    def operand(self):
        token = self.take()
        if isinstance(token, float):
            return token
        if token in SIGNS:
            return SIGNS[token](self.expression(SIGN))
        if token == "(":
            value = self.expression()
            if self.take() != ")":
                raise CalcError("a parenthesis is open")
            return value
        raise CalcError(f"unexpected {token!r}")

    def apply(self, function, left, right):
        try:
            return function(left, right)
        except ZeroDivisionError:
            raise CalcError("division by zero") from None


def evaluate(text):
    """The value of a sum, a float."""
    parser = Parser(text)
    value = parser.expression()
    if parser.left:
        raise CalcError(f"unexpected {parser.peek()!r}")
    return value
