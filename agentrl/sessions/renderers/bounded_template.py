"""Chat templates of strangers: Jinja in its sandbox, whose work and texts have a greatest size.

The sandbox keeps a template from reaching anything. It bounds neither a loop within loops nor a text that doubles, and
so one template could hold up, or fill the memory of, whoever opens its model's folder. Each loop is charged with what
it goes over before it begins, bodies of loops and macros with how much is in them, calls and filters with what they
read, and texts are measured before they are made. What a rendering makes is charged whether it is kept or not: so it
can keep no more than it can pay.
"""

from __future__ import annotations

import re
from collections import UserString
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, cast

from jinja2 import TemplateError, nodes, pass_context
from jinja2.ext import loopcontrols
from jinja2.runtime import LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MOST_ROUNDS = 10_000_000
"""Rounds of all loops of a rendering together: seconds, and many times what 10,000 messages take."""
CALL_ROUNDS = 20
"""The cost of a call or a filter, in rounds of a loop that does nothing."""
CHARACTERS_OF_ROUND = 64
"""Characters that are read or written for a round: all that a rendering makes has 640 million, in 2.5 GB at most."""
ITEM = 2
"""Characters that take as much memory as an item of a list."""
NODES_OF_ROUND = 8
"""Expressions and outputs in a body that are computed for a round."""
MOST_CHARACTERS = 1 << 27
"""The most characters of a text that a template makes, and items of a list: several times the longest context."""
MOST_BITS = 4096
"""The most bits of a number."""
_WIDE = re.compile(r"%[^%a-zA-Z]*(?:\d{5}|\*)")
_WIDE_FIELD = re.compile(r":[^}]*(?:\d{5}|\{)")
_left: ContextVar[list[int]] = ContextVar("rounds left")
_FREE = frozenset(
    {
        *("attr", "count", "d", "default", "first", "items", "last", "length", "map", "random", "reject", "rejectattr"),
        *("safe", "select", "selectattr", "boolean", "callable", "defined", "divisibleby", "even", "false", "filter"),
        *("float", "integer", "iterable", "mapping", "none", "number", "odd", "sameas", "sequence", "test", "true"),
        "undefined",
    }
)
"""Filters and tests that take no time to speak of, whatever they are given; what they pass on is charged there."""
_MISSING = ("striptags", "urlize", "wordwrap", "xmlattr")
"""Filters for pages, whose time and results have other bounds; no chat template uses them."""


class BoundedTemplate:
    """A compiled template.

    Args:
        source: its text.
        filters: besides Jinja's own.
        names: what it may use besides what a rendering gives it.

    Raises:
        TemplateError: it is no valid Jinja.
    """

    def __init__(
        self, source: str, filters: Mapping[str, Callable[..., Any]], names: Mapping[str, Callable[..., Any]]
    ) -> None:
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], finalize=_weighed_output
        )
        environment.filters |= filters
        for name in _MISSING:
            del environment.filters[name]
        del environment.globals["lipsum"]
        for table in (environment.filters, environment.tests):
            table |= {
                name: _weighing(name, cast(Callable[..., Any], function))
                for name, function in table.items()
                if name not in _FREE
            }
        environment.filters |= {
            "bounded_rounds": _charged,
            "bounded_text": _joined,
            "bounded_size": _weighed,
            "bounded_work": _paid,
        }
        environment.globals |= names
        with _rounds():  # what is constant is computed here
            self._template = environment.from_string(_Charging().visit(environment.parse(source)))

    def render(self, **values: Any) -> str:
        """The text.

        Raises:
            TemplateError: it fails, or becomes too large; its own errors, too.
        """
        with _rounds():
            return self._template.render(**values)


@contextmanager
def _rounds() -> Iterator[None]:
    token = _left.set([MOST_ROUNDS])
    try:
        yield
    finally:
        _left.reset(token)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    @staticmethod
    def concat(parts: Iterable[str]) -> str:  # of a rendering, a macro, a block
        return _joined(parts)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sides = [one for one in (left, right) if isinstance(one, str | list | tuple)]
        sizes = [len(one) * (1 if isinstance(one, str) else ITEM) for one in sides]
        if operator == "+":
            _measured(sum(sizes))
        elif operator == "*":
            numbers = [one for one in (left, right) if isinstance(one, int)]
            _measured(sizes[0] * max(numbers[0], 0) if sizes and numbers else 0)
            _measured_number(sum(one.bit_length() for one in numbers))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _measured_number(left.bit_length() * abs(right))
        elif operator == "%" and isinstance(left, str):
            _measured(_formatted((left, right)))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # as Jinja's own
        _pay(CALL_ROUNDS)
        args = tuple(
            _charged(one) if isinstance(one, Iterator) or isinstance(__obj, LoopContext) else one for one in args
        )
        if not isinstance(__obj, Macro):
            method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
            text, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
            if isinstance(text, str | bytes | int | list | tuple):
                _measured(_size(text))
                _measured(_RESULTS.get(name, _widest)((text, *args, *kwargs.values())))
        return super().call(__context, __obj, *args, **kwargs)


class _Charging(NodeTransformer):
    """Passes what loops go over, and what is joined, compared or cut, through the filters that measure it."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "bounded_rounds")
        node.body.insert(0, _charge(node.body))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _charge(node.body))
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _charge(node.body))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "bounded_text")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        for operand in node.ops:
            if operand.op in ("in", "notin"):
                operand.expr = _filtered(operand.expr, "bounded_size")
        node.expr = _filtered(node.expr, "bounded_size")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _filtered(node.node, "bounded_size")
        return node


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(cast(nodes.Expr, node), name, [], [], None, None, lineno=node.lineno)


def _charge(body: list[nodes.Node]) -> nodes.Node:
    """A statement that pays for a body each time that it is run; outputs and containers in it are dear."""
    rest, work = list(body), 0
    while rest:
        node = rest.pop()
        work += NODES_OF_ROUND * len(node.nodes) if isinstance(node, nodes.Output) else _MAKING.get(type(node), 1)
        rest.extend(node.iter_child_nodes())
    return nodes.ExprStmt(_filtered(nodes.Const(work // NODES_OF_ROUND), "bounded_work"))


@pass_context  # else it would be called once, when the template is compiled
def _paid(context: Any, rounds: int) -> None:
    _pay(rounds)


_MAKING: dict[type[nodes.Node], int] = {nodes.List: 8, nodes.Tuple: 8, nodes.Dict: 32}


def _pay(rounds: int) -> None:
    left = _left.get()
    left[0] -= rounds
    if left[0] < 0:
        raise TemplateError(f"the chat template's loops, calls and texts take more than {MOST_ROUNDS} rounds")


def _charged(items: Any) -> Any:
    """Return what a loop goes over, unchanged, once its rounds are paid."""
    if hasattr(items, "__len__"):
        _pay(len(items) + 1)
        return items
    found = []
    for item in items:
        _pay(1)
        found.append(item)
    return found


def _joined(parts: Iterable[Any]) -> str:
    texts = [part if isinstance(part, str) else str(_weighed(part)) for part in parts]
    _measured(sum(map(len, texts)))
    return "".join(texts)


def _size(value: Any, indent: int = 0) -> int:
    """Return the characters of a value as text, about; a list that occurs twice counts, and is paid, twice."""
    if isinstance(value, str):
        return len(value)
    size, rest = 0, [(value, 1)]
    while rest:
        one, depth = rest.pop()
        if isinstance(one, str | bytes | UserString):  # the last has items that are such texts themselves
            size += len(one)
        elif isinstance(one, Namespace):
            rest.append((object.__getattribute__(one, "_Namespace__attrs"), depth))
        elif isinstance(one, Collection):
            _pay(2 * len(one))
            size += (8 + indent * depth) * len(one)
            rest.extend((item, depth + 1) for item in one)
            if isinstance(one, Mapping):
                rest.extend((item, depth + 1) for item in one.values())
    return size


def _weighed(value: Any) -> Any:
    """A value, unchanged, once its size is paid."""
    _measured(_size(value))
    return value


def _weighed_output(value: Any) -> Any:
    return value if isinstance(value, str) else _weighed(value)


def _weighing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or test that measures what it is given, and what it will make of it, first."""
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def weighing(*args: Any, **named: Any) -> Any:
        given = [_charged(one) if isinstance(one, Iterator) else one for one in args]
        values = (*given[first:], *named.values())
        _pay(CALL_ROUNDS)
        _measured(sum(map(_size, values)))
        _measured(_RESULTS.get(name, _widest)(values))
        return function(*given, **named)

    return weighing


def _widest(values: tuple[Any, ...]) -> int:
    """The greatest whole number of the arguments: a width, a number of items, of digits."""
    return max((one for one in values[1:] if isinstance(one, int)), default=0)


def _longest(values: tuple[Any, ...]) -> int:
    return max((_size(one) for one in values[1:]), default=0)


def _formatted(values: tuple[Any, ...]) -> int:
    text = str(values[0])
    if _WIDE.search(text) or _WIDE_FIELD.search(text):
        raise TemplateError(f"the chat template formats a text too wide: {text[:80]!r}")
    return max(text.count("%"), text.count("{")) * _longest(values)


def _replaced(values: tuple[Any, ...]) -> int:
    texts = [str(one) for one in values[1:] if not isinstance(one, int)]
    return max((str(values[0]).count(one) for one in texts), default=0) * max(map(len, texts), default=0)


def _summed(values: tuple[Any, ...]) -> int:
    lists = any(isinstance(one, list | tuple) for one in values[1:])
    return len(values[0]) * _size(values[0]) if lists and isinstance(values[0], Collection) else 0


def _pieces(values: tuple[Any, ...]) -> int:
    return 32 * len(values[0]) if isinstance(values[0], str | bytes) else 0


_RESULTS: dict[str, Callable[[tuple[Any, ...]], int]] = {
    "expandtabs": lambda values: _size(values[0]) * max(_widest(values), 8),
    "format": _formatted,
    "format_map": _formatted,
    "indent": lambda values: (str(values[0]).count("\n") + 1) * max(_widest(values), _longest(values)),
    "join": lambda values: (len(values[0]) if isinstance(values[0], Collection) else 1) * _longest(values),
    "list": _pieces,
    "replace": _replaced,
    "round": lambda values: _widest(values) << 16,
    "rsplit": _pieces,
    "split": _pieces,
    "splitlines": _pieces,
    "sum": _summed,
    "tojson": lambda values: _size(values[0], _widest(values)),
    "translate": lambda values: _size(values[0]) * _longest(values),
}
"""By filter or method of a text, the most characters that it makes of its arguments; of others, `_widest`."""


def _measured(size: int) -> None:
    if size > MOST_CHARACTERS:
        raise TemplateError(f"the chat template makes a text or list of {size}; at most {MOST_CHARACTERS} are allowed")
    if size >= CHARACTERS_OF_ROUND:
        _pay(size // CHARACTERS_OF_ROUND)


def _measured_number(bits: int) -> None:
    if bits > MOST_BITS:
        raise TemplateError(f"the chat template makes a number of {bits} bits")
