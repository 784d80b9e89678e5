"""Faults for a Python program (mutations): each is one edit of a span of its source.

The syntax tree gives the places; the edit is made in the text, so that comments, quotes and line breaks around it stay
unchanged and the diff shows nothing but the fault. Five kinds, after the mutation operators of the testing literature
(DeMillo, Lipton, Sayward: Hints on Test Data Selection, 1978) and frequent mistakes:

    operator    another operator of the same family: + for -, and for or, == for !=
    boundary    one further or one less: < for <=, a number in a comparison, an index or a range by one
    argument    two arguments of a call in each other's place
    case        a guard, an elif or a match's case left out
    exception   another exception caught, one of several not caught, or one swallowed
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

Edit = tuple[int, int, str]
"""A span of the source's UTF-8, and the text that takes its place."""


class FaultKind(StrEnum):
    """A fault's kind of mistake."""

    OPERATOR = "operator"
    BOUNDARY = "boundary"
    ARGUMENT = "argument"
    CASE = "case"
    EXCEPTION = "exception"


@dataclass(frozen=True, slots=True)
class SourceFault:
    """One edit: the bytes [start, end) of a source become `text`."""

    kind: FaultKind
    line: int
    start: int
    end: int
    text: str

    def plant(self, source: str) -> str:
        """The source with this fault in it."""
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.end :]).decode()


SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "//"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
}
"""An operator as it is written (a regular expression where it is two words), and the one that takes its place."""
EDGES: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
}
MISTAKEN = {"KeyError": "IndexError", "IndexError": "KeyError", "ValueError": "KeyError", "TypeError": "ValueError"}
MISTAKEN |= {"OSError": "ValueError", "FileNotFoundError": "PermissionError", "StopIteration": "ValueError"}
"""Exceptions that are easily taken for one another."""


class _Source:
    """A source's text by the positions that its tree has: lines from 1, columns in bytes."""

    def __init__(self, text: str) -> None:
        self.data = text.encode()
        self.lines = [0]
        for line in self.data.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.lines[node.lineno - 1] + node.col_offset, self.lines[node.end_lineno - 1] + node.end_col_offset

    def text(self, start: int, end: int) -> str:
        return self.data[start:end].decode()

    def whole_lines(self, first: int, last: int) -> tuple[int, int]:
        return self.lines[first - 1], self.lines[last]


def faults(source: str, kinds: Iterable[FaultKind] = tuple(FaultKind)) -> list[SourceFault]:
    """Every fault that can be planted in a source, in the order of their places.

    Raises:
        SyntaxError: it is no Python.
    """
    tree = ast.parse(source)
    at = _Source(source)
    finders = {FaultKind.OPERATOR: _operators, FaultKind.BOUNDARY: _boundaries, FaultKind.ARGUMENT: _arguments}
    finders |= {FaultKind.CASE: _cases, FaultKind.EXCEPTION: _exceptions}
    found = {
        SourceFault(kind, at.data.count(b"\n", 0, start) + 1, start, end, text)
        for kind in kinds
        for node in ast.walk(tree)
        for start, end, text in finders[kind](node, at)
    }
    plain = ast.dump(tree)
    return sorted((fault for fault in found if _differs(fault.plant(source), plain)), key=_order)


def _order(fault: SourceFault) -> tuple[int, int, str, str]:
    return fault.start, fault.end, fault.kind.value, fault.text


def _differs(source: str, plain: str) -> bool:
    try:
        return ast.dump(ast.parse(source)) != plain
    except (SyntaxError, ValueError):
        return False


def _operators(node: ast.AST, at: _Source) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp):
        textual = any(
            isinstance(side, ast.Constant | ast.JoinedStr) and _is_text(side) for side in (node.left, node.right)
        )
        if not textual:  # a text minus a text always fails: too easy
            yield from _between(node.left, node.right, node.op, SWAPS, at)
    elif isinstance(node, ast.AugAssign) and type(node.op) in SWAPS:
        written, other = SWAPS[type(node.op)]
        start, end = at.span(node.target)[1], at.span(node.value)[0]
        yield from _replace(start, end, re.escape(written) + "=", other + "=", at)
    elif isinstance(node, ast.BoolOp):
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from _between(left, right, node.op, SWAPS, at)
    elif isinstance(node, ast.Compare):
        yield from _comparisons(node, SWAPS, at)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        start, end = at.span(node)[0], at.span(node.operand)[0]
        if at.text(start, end).strip() == "not":
            yield start, end, ""


def _is_text(node: ast.Constant | ast.JoinedStr) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(node.value, str | bytes)


def _boundaries(node: ast.AST, at: _Source) -> Iterator[Edit]:
    numbers: list[ast.expr | None] = []
    if isinstance(node, ast.Compare):
        yield from _comparisons(node, EDGES, at)
        if all(type(op) in EDGES for op in node.ops):
            numbers = [node.left, *node.comparators]
    elif isinstance(node, ast.Slice):
        numbers = [node.lower, node.upper]
    elif isinstance(node, ast.Subscript):
        numbers = [node.slice]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        numbers = [node.right]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("range", "enumerate"):
        numbers = list(node.args[-2:])
    for number in numbers:
        if isinstance(number, ast.Constant) and type(number.value) is int and number.value < 1000:
            start, end = at.span(number)
            yield start, end, str(number.value + 1)
            if number.value:
                yield start, end, str(number.value - 1)


def _arguments(node: ast.AST, at: _Source) -> Iterator[Edit]:
    if not isinstance(node, ast.Call):
        return
    for one, other in zip(node.args, node.args[1:], strict=False):
        if isinstance(one, ast.Starred) or isinstance(other, ast.Starred):
            continue
        (start, middle), (resume, end) = at.span(one), at.span(other)
        gap = at.text(middle, resume)
        if gap.strip() == ",":
            yield start, end, at.text(resume, end) + gap + at.text(start, middle)


def _cases(node: ast.AST, at: _Source) -> Iterator[Edit]:
    if isinstance(node, ast.If):
        branch = node.orelse[0] if len(node.orelse) == 1 else None
        if isinstance(branch, ast.If) and at.text(*at.span(branch)).startswith("elif"):
            yield *at.whole_lines(branch.lineno, _last_line(branch.body)), ""
    if isinstance(node, ast.Match) and len(node.cases) > 1:
        for case in node.cases:
            yield *at.whole_lines(case.pattern.lineno, _last_line(case.body)), ""
    for body in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
        if isinstance(body, list) and len(body) > 1:
            for statement in body:
                if isinstance(statement, ast.If) and not statement.orelse and _leaves(statement.body[-1]):
                    yield *at.whole_lines(statement.lineno, _last_line(statement.body)), ""


def _last_line(body: list[ast.stmt]) -> int:
    return body[-1].end_lineno or body[-1].lineno


def _leaves(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Return | ast.Raise | ast.Continue | ast.Break)


def _exceptions(node: ast.AST, at: _Source) -> Iterator[Edit]:
    if not isinstance(node, ast.ExceptHandler):
        return
    if isinstance(node.type, ast.Tuple):
        for left_out in node.type.elts:
            kept = [at.text(*at.span(kind)) for kind in node.type.elts if kind is not left_out]
            yield *at.span(node.type), kept[0] if len(kept) == 1 else f"({', '.join(kept)})"
    elif isinstance(node.type, ast.Name) and node.type.id in MISTAKEN:
        yield *at.span(node.type), MISTAKEN[node.type.id]
    for statement in node.body:
        if isinstance(statement, ast.Raise):
            yield *at.span(statement), "pass"


def _comparisons(node: ast.Compare, table: dict[type[ast.AST], tuple[str, str]], at: _Source) -> Iterator[Edit]:
    sides = [node.left, *node.comparators]
    for left, right, operator in zip(sides, sides[1:], node.ops, strict=False):
        yield from _between(left, right, operator, table, at)


def _between(
    left: ast.expr, right: ast.expr, operator: ast.AST, table: dict[type[ast.AST], tuple[str, str]], at: _Source
) -> Iterator[Edit]:
    if type(operator) in table:
        written, other = table[type(operator)]
        pattern = written if "\\" in written else re.escape(written)
        yield from _replace(at.span(left)[1], at.span(right)[0], pattern, other, at)


def _replace(start: int, end: int, pattern: str, other: str, at: _Source) -> Iterator[Edit]:
    """The operator between two operands, surrounded by blanks and parentheses only."""
    gap = at.data[start:end].decode()
    match = re.fullmatch(rf"([\s()\\]*)({pattern})([\s()\\]*)", gap)
    if match:
        yield start + len(match[1].encode()), start + len((match[1] + match[2]).encode()), other
