"""Conditions on sessions as people write them: `score < 1 and (turns > 3 or data.level == "hard")`.

The grammar is that of Python's expressions (`ast` reads them; nothing is run), of which comparisons, `in`, `is None`,
`and`, `or`, `not` and brackets are taken. A name is a column of the summaries, or
`measured`, the score before anybody edited it; `reward.NAME`, `data.FIELD` (of the
task), `info.FIELD`, `counters.NAME` and `timings.NAME` are looked up, also as `reward["a name"]` and `data.steps[0]`.
What a session does not have is None: no comparison holds for it but `is None`, `!=` and `not in`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from agentrl.errors import InvalidInput, unknown_name
from agentrl.sessions.store.edited import MEASURED, MEASURED_SCORE
from agentrl.sessions.store.summary import COLUMNS

LONGEST = 1000
"""The most characters of an expression."""
DEEPEST = 20
"""Levels of an expression; SQLite takes a hundred brackets within each other."""
FIELDS = {
    "reward": ("rewards", "$"),
    "data": ("(SELECT task FROM tasks WHERE tasks.session = summaries.session)", "$.data"),
    **{
        name: ("(SELECT head FROM sessions WHERE sessions.key = summaries.session)", f"$.{name}")
        for name in ("info", "counters", "timings")
    },
}
"""Names with fields: the JSON that has the fields, and its path there."""
COMPARED: dict[type[ast.cmpop], str] = {
    **{ast.Eq: "=", ast.NotEq: "IS NOT", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="},
    **{ast.Is: "IS", ast.IsNot: "IS NOT"},
}
FORM = 'such as score < 1 and (turns > 3 or data.level == "hard")'


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a row of `summaries`, as SQL and its parameters."""

    sql: str
    values: tuple[Any, ...] = ()


def condition(text: str) -> Condition:
    """Read a condition.

    Raises:
        InvalidInput: it is none, or too long.
        UnknownName: it names no column.
    """
    if len(text) > LONGEST:
        raise InvalidInput(f"the condition has {len(text):,} characters; at most {LONGEST:,}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if _depth(tree) > DEEPEST:
            raise InvalidInput(f"the condition is nested more than {DEEPEST} deep")
        return _truth(tree, text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InvalidInput(f"where={text!r} is no condition, {FORM}") from None


def _depth(node: ast.AST) -> int:
    return 1 + max(map(_depth, ast.iter_child_nodes(node)), default=0)


def _truth(node: ast.expr, text: str) -> Condition:
    """A condition that is 0 or 1, and never unknown."""
    if isinstance(node, ast.BoolOp):
        parts = [_truth(each, text) for each in node.values]
        word = " AND " if isinstance(node.op, ast.And) else " OR "
        return Condition(f"({word.join(part.sql for part in parts)})", tuple(v for part in parts for v in part.values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        part = _truth(node.operand, text)
        return Condition(f"(NOT {part.sql})", part.values)
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        parts = [_comparison(sides[i], op, sides[i + 1], text) for i, op in enumerate(node.ops)]
        return Condition(
            f"({' AND '.join(part.sql for part in parts)})", tuple(v for part in parts for v in part.values)
        )
    part = _value(node, text)
    return Condition(f"coalesce({part.sql} <> 0, 0)", part.values)


def _comparison(left: ast.expr, op: ast.cmpop, right: ast.expr, text: str) -> Condition:
    one = _value(left, text)
    if isinstance(op, ast.In | ast.NotIn):
        sql, values = _membership(one, right, text)
        return Condition(f"NOT {sql}" if isinstance(op, ast.NotIn) else sql, values)
    other = _value(right, text)
    return Condition(f"coalesce({one.sql} {COMPARED[type(op)]} {other.sql}, 0)", (*one.values, *other.values))


def _membership(one: Condition, right: ast.expr, text: str) -> tuple[str, tuple[Any, ...]]:
    """`value in [1, 2]`, or `"text" in name`: whether a text, or the JSON of a list, contains it."""
    if isinstance(right, ast.List | ast.Tuple | ast.Set):
        members = [_value(each, text) for each in right.elts]
        sql = f"coalesce({one.sql} IN ({', '.join(each.sql for each in members)}), 0)"
        return sql, (*one.values, *(value for each in members for value in each.values))
    where = _value(right, text)
    return f"coalesce(instr(lower({where.sql}), lower({one.sql})) > 0, 0)", (*where.values, *one.values)


def _value(node: ast.expr, text: str) -> Condition:
    """A constant, a column or a field."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | None):
        if isinstance(node.value, int) and abs(node.value) >= 2**63:
            raise InvalidInput(f"where={text!r}: {node.value} is larger than any number of a session")
        return Condition("?", (node.value,))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        part = _value(node.operand, text)
        return Condition(f"(-{part.sql})", part.values)
    path: list[str | int] = []
    place = node
    while isinstance(place, ast.Attribute | ast.Subscript):
        if isinstance(place, ast.Attribute):
            path.insert(0, place.attr)
        elif isinstance(place.slice, ast.Constant) and type(place.slice.value) in (str, int):
            path.insert(0, place.slice.value)  # type: ignore[arg-type]
        else:
            raise InvalidInput(f"where={text!r}: {ast.unparse(place)} has no plain name or number in its brackets")
        place = place.value
    if not isinstance(place, ast.Name):
        raise InvalidInput(f"where={text!r}: {ast.unparse(node)} is no comparison, name or constant; write it {FORM}")
    if not path and place.id in COLUMNS:
        return Condition(f'"{place.id}"')
    if not path and place.id == MEASURED:
        return Condition(MEASURED_SCORE)
    if path and place.id in FIELDS:
        source, start = FIELDS[place.id]
        return Condition(f"json_extract({source}, ?)", (start + "".join(_step(each, text) for each in path),))
    raise unknown_name("column", ast.unparse(node), [*COLUMNS, MEASURED, *(f"{name}.NAME" for name in FIELDS)])


def _step(name: str | int, text: str) -> str:
    if isinstance(name, str) and '"' in name:
        raise InvalidInput(f"where={text!r}: a field's name can't have a quotation mark")
    return f'."{name}"' if isinstance(name, str) else f"[{name}]" if name >= 0 else f"[#{name}]"
