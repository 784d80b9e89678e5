"""Parts of a test that follow from its text alone, whatever the code under test does.

Such a part can be an expectation that is kept out of the sandbox: it has the same value in every run. A name counts
where it is bound once, to such a part (an assignment, a loop over a written-out table, `parametrize`), and nothing
could change what it is bound to.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef
PURE_MODULES = {"base64", "binascii", "calendar", "collections", "datetime", "decimal", "fractions", "hashlib", "json"}
PURE_MODULES |= {"ipaddress", "math", "string", "struct", "textwrap", "urllib", "uuid", "zlib"}
"""Modules of the standard library whose functions give the same for the same (used so; `date.today` is excluded)."""
PURE_BUILTINS = {"abs", "bool", "bytes", "chr", "complex", "dict", "divmod", "enumerate", "float", "frozenset", "hex"}
PURE_BUILTINS |= {"int", "len", "list", "max", "min", "ord", "pow", "range", "reversed", "round", "set", "slice"}
PURE_BUILTINS |= {"sorted", "str", "sum", "tuple", "zip"}
PURE_METHODS = {"join", "encode", "decode", "format", "replace", "lower", "upper", "title", "strip", "split", "items"}
PURE_METHODS |= {"keys", "values", "copy", "isoformat", "ljust", "rjust", "center", "zfill", "splitlines", "count"}
PURE_METHODS |= {"index", "startswith", "endswith", "lstrip", "rstrip", "get", "hex", "to_bytes"}
NOT_PURE = {"today", "now", "utcnow", "uuid1", "uuid4"}


def is_literal(node: ast.AST) -> bool:
    """Return whether a value is written out."""
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def called(call: ast.AST) -> str:
    """The last part of what is called."""
    function = call.func if isinstance(call, ast.Call) else call
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


class Constants:
    """The constant names of a module, or of a function in it (with those of what is around it)."""

    def __init__(self, owner: ast.Module | Function, outer: Constants | None = None) -> None:
        self.outer = outer
        self.pure: set[str] = set(outer.pure) if outer else set()
        self.modules: set[str] = set(outer.modules) if outer else set()
        self._stores = _stores(owner)
        self.pure -= set(self._stores)
        if isinstance(owner, ast.Module):
            self._imports(owner.body)
        bindings = list(_bindings(owner))
        changed = _changed_names(owner, self)
        known = -1
        while known != len(self.pure):  # a name may rest on one that is found later
            known = len(self.pure)
            for name, value in bindings:
                if self._stores.get(name) == 1 and self.holds(value) and (name not in changed or _stateless(value)):
                    self.pure.add(name)

    def _imports(self, body: Iterable[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PURE_MODULES:
                self.modules |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.Import):
                found = (alias.asname or alias.name.split(".")[0] for alias in node.names)
                self.modules |= {name for name in found if name in PURE_MODULES}

    def holds(self, node: ast.AST, bound: frozenset[str] = frozenset()) -> bool:
        """Return whether an expression has the same value whatever the code under test does."""
        if isinstance(node, ast.Name):
            shadowed = node.id in self._stores and node.id not in self.pure
            builtin = node.id in PURE_BUILTINS or isinstance(getattr(builtins, node.id, None), type)
            return node.id in bound or node.id in self.pure or (builtin and not shadowed)
        if isinstance(node, ast.Call):
            return self._holds_call(node, bound)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            names = {part.id for gen in node.generators for part in ast.walk(gen.target) if isinstance(part, ast.Name)}
            inner = bound | names
            return all(self.holds(part, inner) for part in ast.iter_child_nodes(node))
        allowed = (ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.IfExp)
        allowed += (ast.Compare, ast.Subscript, ast.Slice, ast.JoinedStr, ast.FormattedValue, ast.Starred)  # type: ignore[assignment]
        allowed += (ast.comprehension, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context)  # type: ignore[assignment]
        return isinstance(node, allowed) and all(self.holds(part, bound) for part in ast.iter_child_nodes(node))

    def _holds_call(self, node: ast.Call, bound: frozenset[str]) -> bool:
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        if not all(self.holds(part, bound) for part in given) or called(node) in NOT_PURE:
            return False
        function = node.func
        root = function
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in self.modules and root.id not in self._stores:
            return True
        if isinstance(function, ast.Attribute):
            return function.attr in PURE_METHODS and self.holds(function.value, bound)
        return isinstance(function, ast.Name) and function.id in PURE_BUILTINS and function.id not in self._stores


def _own(owner: ast.AST) -> Iterator[ast.AST]:
    """All nodes below one; of a module, not what is inside of its functions and classes."""
    for node in ast.iter_child_nodes(owner):
        yield node
        if not isinstance(owner, ast.Module) or not isinstance(node, Function | ast.ClassDef):
            yield from ast.walk(node)


def _stores(owner: ast.Module | Function) -> dict[str, int]:
    """How often each name is bound there."""
    count: dict[str, int] = {}
    seen: set[int] = set()
    for node in _own(owner):
        if id(node) in seen:
            continue
        seen.add(id(node))
        names: list[str] = []
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names = [node.id]
        elif isinstance(node, ast.arg):
            names = [node.arg]
        elif isinstance(node, ast.alias):
            names = [(node.asname or node.name).split(".")[0]] if not isinstance(owner, ast.Module) else []
        elif isinstance(node, Function | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Global | ast.Nonlocal):
            names = [*node.names, *node.names]
        for name in names:
            count[name] = count.get(name, 0) + 1
    return count


def _changed_names(owner: ast.AST, constants: Constants) -> set[str]:
    """Names whose values something could change: receivers of methods, targets of subscripts, arguments of calls."""
    found: set[str] = set()
    for node in ast.walk(owner):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr not in PURE_METHODS:
            found.add(node.value.id)
        elif isinstance(node, ast.Subscript | ast.Starred) and not isinstance(node.ctx, ast.Load):
            found |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Call) and not harmless(node):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            found |= {part.id for part in given if isinstance(part, ast.Name)}
    return found


def harmless(call: ast.Call) -> bool:
    """Return whether a call is known to leave its arguments as they are."""
    name, function = called(call), call.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Constant):
        return True
    known = name in PURE_BUILTINS or name in ("approx", "subTest", "isinstance", "any", "all")
    return known or name.startswith("assert")


def _stateless(node: ast.AST) -> bool:
    """Return whether nothing can change a value: no list, set or dictionary in it."""
    bad = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.SetComp, ast.DictComp, ast.Call, ast.Name)
    return not any(isinstance(part, bad) for part in ast.walk(node))


def _bindings(owner: ast.Module | Function) -> Iterator[tuple[str, ast.AST]]:
    """(name, what it is bound to, or a table that it goes through)."""
    if not isinstance(owner, ast.Module):
        for names, rows in parametrized(owner):
            for place, name in enumerate(names):
                yield from ((name, value) for value in [_column(rows, place, len(names))])
    for node in _own(owner):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and node.value and isinstance(node.target, ast.Name):
            yield node.target.id, node.value
        elif isinstance(node, ast.For):
            targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
            for place, target in enumerate(targets):
                if isinstance(target, ast.Name):
                    yield target.id, _column(node.iter, place, len(targets))
                else:
                    for part in ast.walk(target):
                        if isinstance(part, ast.Name):
                            yield part.id, node.iter


def _column(rows: ast.expr, place: int, width: int) -> ast.AST:
    """What a name of several goes through: its column, where the table is written out as one; else the whole."""
    found = columns(rows, width)
    if found is None:
        return rows
    return ast.Tuple([row[place] for row in found], ast.Load())


def columns(rows: ast.expr, width: int) -> list[list[ast.expr]] | None:
    """A written-out table's rows; None where it is none. Rows may be wrapped in `pytest.param`."""
    if not isinstance(rows, ast.List | ast.Tuple):
        return None
    found: list[list[ast.expr]] = []
    for row in rows.elts:
        if isinstance(row, ast.Call) and called(row) == "param":
            found.append(row.args)
        elif width == 1:
            found.append([row])
        elif isinstance(row, ast.List | ast.Tuple):
            found.append(row.elts)
        else:
            return None
    return found if all(len(row) == width for row in found) else None


def parametrized(function: Function) -> Iterator[tuple[list[str], ast.expr]]:
    """The arguments that `pytest.mark.parametrize` gives a function: names, and the table that they go through."""
    for mark in function.decorator_list:
        if isinstance(mark, ast.Call) and called(mark) == "parametrize" and len(mark.args) >= 2:
            given: Any = ast.literal_eval(mark.args[0]) if is_literal(mark.args[0]) else ""
            parts = given.split(",") if isinstance(given, str) else map(str, given)
            names = [part.strip() for part in parts if part.strip()]
            if names:
                yield names, mark.args[1]
