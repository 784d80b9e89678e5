"""Chat templates of strangers: Jinja in its sandbox, whose loops and texts have a greatest size.

The sandbox keeps a template from reaching anything. It bounds neither a loop within loops nor a text that doubles, and
so one template could hold up, or fill the memory of, whoever opens its model's folder. Each loop is charged with what
it goes over before it begins, and sums, products and joined texts are measured before they are made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MOST_ROUNDS = 10_000_000
"""Rounds of all loops of a rendering together: seconds, and many times what 10,000 messages take."""
MOST_CHARACTERS = 1 << 27
"""Of a text that a template makes, and items of a list: several times the longest context."""
MOST_BITS = 4096
"""Of a number."""
_WIDE = re.compile(r"%[^%a-zA-Z]*(?:\d{5}|\*)")
_left: ContextVar[list[int]] = ContextVar("rounds left")


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
        environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters |= {**filters, "bounded_rounds": _charged, "bounded_text": _joined}
        environment.globals |= names
        self._template = environment.from_string(_Charging().visit(environment.parse(source)))

    def render(self, **values: Any) -> str:
        """The text.

        Raises:
            TemplateError: it fails, or becomes too large; its own errors, too.
        """
        token = _left.set([MOST_ROUNDS])
        try:
            return self._template.render(**values)
        finally:
            _left.reset(token)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(one) for one in (left, right) if isinstance(one, str | list | tuple)]
        if operator == "+":
            _measured(sum(sizes))
        elif operator == "*":
            numbers = [one for one in (left, right) if isinstance(one, int)]
            _measured(sizes[0] * max(numbers[0], 0) if sizes and numbers else 0)
            _measured_number(sum(one.bit_length() for one in numbers))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _measured_number(left.bit_length() * abs(right))
        elif operator == "%" and isinstance(left, str) and _WIDE.search(left):
            raise TemplateError(f"the chat template formats a text too wide: {left[:80]!r}")
        return super().call_binop(context, operator, left, right)


class _Charging(NodeTransformer):
    """Passes what loops go over, and what `~` joins, through the filters that measure them."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "bounded_rounds", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "bounded_text", [], [], None, None, lineno=node.lineno)


def _charged(items: Any) -> Any:
    """What a loop goes over, unchanged, once its rounds are paid."""
    found = items if hasattr(items, "__len__") else list(items)
    left = _left.get()
    left[0] -= len(found) + 1
    if left[0] < 0:
        raise TemplateError(f"the chat template's loops have more than {MOST_ROUNDS} rounds")
    return found


def _joined(parts: Iterable[Any]) -> str:
    texts = [str(part) for part in parts]
    _measured(sum(map(len, texts)))
    return "".join(texts)


def _measured(size: int) -> None:
    if size > MOST_CHARACTERS:
        raise TemplateError(f"the chat template makes a text or list of {size}; at most {MOST_CHARACTERS} are allowed")


def _measured_number(bits: int) -> None:
    if bits > MOST_BITS:
        raise TemplateError(f"the chat template makes a number of {bits} bits")
