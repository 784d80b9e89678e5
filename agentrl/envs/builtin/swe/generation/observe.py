"""Tests rewritten to show what the code under test does, without saying what it should do.

A test's verdict is reached in a process that runs the code under test, and that code can do there whatever it likes:
replace the framework, write the report, look up the expected value. So no verdict is asked for in there. Each
assertion becomes an observation: `assert slug(text) == "a-b"` becomes `_observe(3, slug(text))`, and that the value is
to be "a-b" is known outside alone (`expect`, `key`). What the code under test can still forge is what it shows, and to
be rewarded for that it has to show what a right program does.

Assertions without a constant side show whether they hold, and which of the two is right is not said: negated forms
become the others. `raises` becomes a block of which it is not said what it should raise, or whether.

A test is written in two ways: for the proof (`recording`), where the expected values are shown as well, and for the
scoring, where they and whatever held nothing else (columns of tables, names, identifiers) are gone.
"""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass, field
from typing import Any

from agentrl.envs.builtin.swe.generation.constant import Constants, Function, called_name, is_literal
from agentrl.envs.builtin.swe.generation.prune import prune

OBSERVER = "_observe"
"""The function that the rewritten tests call; the program inside the sandbox defines it among the builtins."""
EQUALITIES = {f"assert{kind}Equal" for kind in ("", "List", "Dict", "Set", "Tuple", "Sequence", "MultiLine")}
TRUTHS = {"assertTrue": True, "assertFalse": False}
COMPARED = {
    "assertIs": ast.Is,
    "assertIsNot": ast.IsNot,
    "assertIn": ast.In,
    "assertNotIn": ast.NotIn,
    "assertNotEqual": ast.NotEq,
    "assertGreater": ast.Gt,
    "assertGreaterEqual": ast.GtE,
    "assertLess": ast.Lt,
    "assertLessEqual": ast.LtE,
}
NEGATED = {ast.NotEq: ast.Eq, ast.IsNot: ast.Is, ast.NotIn: ast.In, ast.GtE: ast.Lt, ast.LtE: ast.Gt}
"""Comparisons, and those that say the opposite."""
RAISING = {"raises", "assertRaises", "assertRaisesRegex"}
EXCEPTIONS: tuple[str, ...] = ("ValueError", "KeyError", "TypeError", "IndexError", "AttributeError", "RuntimeError")
EXCEPTIONS += ("OSError", "LookupError", "ArithmeticError", "ZeroDivisionError", "StopIteration", "NotImplementedError")
EXCEPTIONS += ("Exception",)
TRANSPARENT = {"subTest", "open", "patch", "object", "dict", "TemporaryDirectory", "NamedTemporaryFile", "closing"}
TRANSPARENT |= {"catch_warnings", "redirect_stdout", "redirect_stderr", "ThreadPoolExecutor", "Lock", "RLock"}
"""Contexts that let an exception through; another could swallow a failing assertion, which would then be none."""


@dataclass(frozen=True, slots=True)
class AssertionSite:
    """An assertion of a test file.

    Attributes:
        kind: how what is shown is held against what is expected: equal, same, count, approx, almost, compare, truth,
            raises; left: it stands as it was written.
        options: of that kind, as JSON: the operator, whether it is to hold, the exceptions.
        steady: whether every run of a right program comes by as often; else each time counts for itself.
    """

    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    steady: bool = True


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A test file for the proof and for scoring, and its assertions by their number."""

    recording: str
    scoring: str
    sites: tuple[AssertionSite, ...]


def rewritten(source: str, related: frozenset[int] = frozenset()) -> Rewritten:
    """A Python test file in its two forms.

    Args:
        source: the file.
        related: assertions, by number, that are to show whether they hold, since what they compare can't be shown.

    Raises:
        SyntaxError: it is no Python.
    """
    texts: list[str] = []
    sites: list[AssertionSite] = []
    for recording in (True, False):
        module = ast.parse(source)
        rewriter = _Rewriter(module, recording, related)
        rewriter.visit(module)
        if not recording:
            prune(module)
        texts.append(ast.unparse(ast.fix_missing_locations(module)) + "\n")
        sites = rewriter.sites
    return Rewritten(texts[0], texts[1], tuple(sites))


class _Rewriter(ast.NodeTransformer):
    def __init__(self, module: ast.Module, recording: bool, related: frozenset[int]) -> None:
        self.recording, self.related = recording, related
        self.sites: list[AssertionSite] = []
        self._scopes = [Constants(module)]
        self._steady, self._depth, self._swallowed = False, 0, 0
        known = {name.id for node in module.body for name in ast.walk(node) if isinstance(name, ast.Name)}
        self._module_names = _names_of(module) | set(dir(builtins))
        self._catches = any(_catches(node) for node in ast.walk(module))
        named = {ast.unparse(kind) for kind in _list_raised(module) if _root(kind) in self._module_names}
        self._kinds = sorted(named | set(EXCEPTIONS) - (known & _names_of(module)))

    # -------------------------------------------------------------------------------- where an assertion stands

    def _function(self, node: Function) -> ast.AST:
        before, swallowed = self._steady, self._swallowed
        test = node.name.startswith(("test", "setUp", "setup_method"))
        if self._catches and (self._depth or not test):
            self._swallowed += 1  # it may be called where a failing assertion is caught
        plain = all(
            _dot(mark).startswith(("pytest.mark.", "unittest.", "mock.", "patch")) for mark in node.decorator_list
        )
        self._steady = test and plain and self._depth == 0
        self._scopes.append(Constants(node, self._scopes[-1]))
        self._depth += 1
        node.body = self._block(node.body)
        self._depth -= 1
        self._scopes.pop()
        self._steady, self._swallowed = before, swallowed
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def _varying(self, node: ast.AST) -> ast.AST:
        before, self._steady = self._steady, False
        self.generic_visit(node)
        self._steady = before
        return node

    visit_If = visit_While = visit_AsyncFor = visit_Match = _varying

    def visit_For(self, node: ast.For) -> ast.AST:
        leaves = any(isinstance(part, ast.Continue | ast.Break | ast.Return) for part in ast.walk(node))
        return self.generic_visit(node) if self._constant(node.iter) and not leaves else self._varying(node)

    def visit_Try(self, node: ast.Try) -> ast.AST:
        self._swallowed += bool(node.handlers)
        node.body = self._block(node.body)
        self._swallowed -= bool(node.handlers)
        for handler in node.handlers:
            self._varying(handler)
        node.orelse, node.finalbody = self._block(node.orelse), self._block(node.finalbody)
        return node

    def _with(self, node: ast.With | ast.AsyncWith) -> ast.AST:
        swallows = False
        for item in node.items:
            name = called_name(item.context_expr)
            if (name in RAISING and isinstance(item.context_expr, ast.Call)) or name not in TRANSPARENT:
                swallows = True
            if name == "subTest" and isinstance(item.context_expr, ast.Call):
                item.context_expr.args, item.context_expr.keywords = [], []
        self._swallowed += swallows
        node.body = self._block(node.body)
        self._swallowed -= swallows
        for item in node.items:
            if not self._swallowed and isinstance(item.context_expr, ast.Call):
                item.context_expr = self._of_raises(item.context_expr) or item.context_expr
        return node

    visit_With = visit_AsyncWith = _with

    def _block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return [self.visit(node) for node in body]

    # ------------------------------------------------------------------------------------------- assertions

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        found = None if self._swallowed or not self._depth else self._of_truth(node.test, True)
        return node if found is None else ast.copy_location(ast.Expr(found), node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        call = node.value
        if not isinstance(call, ast.Call) or self._swallowed or not self._depth:
            return node
        if called_name(call) == "assertRaises" and len(call.args) >= 2:
            raises = self._of_raises(ast.Call(call.func, call.args[:1], []))
            work = ast.Expr(ast.Call(call.args[1], call.args[2:], call.keywords))
            if raises is not None:
                return ast.copy_location(ast.With([ast.withitem(raises)], [work]), node)
        found = self._of_method(call)
        return node if found is None else ast.copy_location(ast.Expr(found), node)

    def _of_truth(self, test: ast.expr, holds: bool) -> ast.expr:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self._of_truth(test.operand, not holds)
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            return self._of_compare(test.left, test.ops[0], test.comparators[0], holds)
        return self._truth(test, holds)

    def _of_compare(self, left: ast.expr, op: ast.cmpop, right: ast.expr, holds: bool) -> ast.expr:
        kind = type(op)
        if kind in NEGATED and kind in (ast.NotEq, ast.IsNot, ast.NotIn):
            return self._of_compare(left, NEGATED[kind](), right, not holds)
        sides = self._sides(left, right) if len(self.sites) not in self.related else None
        if sides is not None and kind in (ast.Eq, ast.Is) and holds:
            shown, expected = sides
            if isinstance(expected, ast.Call) and called_name(expected) == "approx":
                return self._of_approx(shown, expected) or self._truth(ast.Compare(left, [op], [right]), holds)
            same = kind is ast.Is or (isinstance(expected, ast.Constant) and expected.value is None)
            return self._site("same" if same else "equal", {}, shown, expected)
        if sides is not None and kind not in (ast.Eq, ast.Is):
            shown, expected = sides
            options = {"operator": kind.__name__, "holds": holds, "swapped": expected is left}
            return self._site("compare", options, shown, expected)
        if kind in NEGATED:
            op, holds = NEGATED[kind](), not holds
        return self._truth(ast.Compare(left, [op], [right]), holds)

    def _of_approx(self, shown: ast.expr, call: ast.Call) -> ast.expr | None:
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        given |= dict(zip(("rel", "abs", "nan_ok"), call.args[1:], strict=False))
        if set(given) - {"rel", "abs"} or not call.args:
            return None
        none = ast.Constant(None)
        expected = ast.Tuple([call.args[0], given.get("rel", none), given.get("abs", none)], ast.Load())
        return self._site("approx", {}, shown, expected)

    def _of_method(self, call: ast.Call) -> ast.expr | None:
        method, args = called_name(call), call.args
        if not isinstance(call.func, ast.Attribute) or any(isinstance(arg, ast.Starred) for arg in args):
            return None
        if method in TRUTHS and args:
            return self._of_truth(args[0], TRUTHS[method])
        if method in ("assertIsNone", "assertIsNotNone") and args:
            op = ast.Is() if method == "assertIsNone" else ast.IsNot()
            return self._of_compare(args[0], op, ast.Constant(None), True)
        if method in ("assertIsInstance", "assertNotIsInstance") and len(args) >= 2:
            check = ast.Call(ast.Name("isinstance", ast.Load()), args[:2], [])
            return self._truth(check, method == "assertIsInstance")
        if len(args) < 2:
            return None
        if method in EQUALITIES:
            return self._of_compare(args[0], ast.Eq(), args[1], True)
        if method in COMPARED:
            return self._of_compare(args[0], COMPARED[method](), args[1], True)
        sides = self._sides(args[0], args[1])
        if sides is None:
            return None
        if len(self.sites) in self.related:
            self.sites.append(AssertionSite("left"))  # as it was written
            return None
        shown, expected = sides
        if method == "assertCountEqual":
            return self._site("count", {}, ast.Call(ast.Name("list", ast.Load()), [shown], []), expected)
        if method == "assertRegex" and expected is args[1]:
            return self._site("compare", {"operator": "Regex", "holds": True, "swapped": False}, shown, expected)
        given = {keyword.arg: keyword.value for keyword in call.keywords} | dict(
            zip(("places",), args[2:], strict=False)
        )
        if method == "assertAlmostEqual" and not set(given) - {"places", "delta", "msg"}:
            none = ast.Constant(None)
            parts = [expected, given.get("places", none), given.get("delta", none)]
            return self._site("almost", {}, shown, ast.Tuple(parts, ast.Load()))
        return None

    def _of_raises(self, call: ast.Call) -> ast.expr | None:
        """A block that shows what it raises, in place of one that says what it is to."""
        if called_name(call) not in RAISING or not call.args:
            return None
        kinds = call.args[0].elts if isinstance(call.args[0], ast.Tuple) else [call.args[0]]
        texts = [ast.unparse(kind) for kind in kinds]
        patterns = [keyword.value for keyword in call.keywords if keyword.arg == "match"] + call.args[1:2]
        if not set(texts) <= set(self._kinds) or not all(isinstance(part, ast.Constant) for part in patterns):
            return None
        options = {
            "kinds": [self._kinds.index(text) for text in texts],
            "names": self._kinds,
            "match": patterns[0].value if patterns else None,  # type: ignore[attr-defined]
        }
        number = len(self.sites)
        self.sites.append(AssertionSite("raises", options, self._steady))
        tried = ", ".join(f"lambda: {kind}" for kind in self._kinds)
        return ast.parse(f"{OBSERVER}.raising({number}, [{tried}])", mode="eval").body

    # -------------------------------------------------------------------------------------------- small parts

    def _constant(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call) and called_name(node) == "approx":
            return all(self._constant(part) for part in [*node.args, *(k.value for k in node.keywords)])
        return self._scopes[-1].holds(node)

    def _sides(self, left: ast.expr, right: ast.expr) -> tuple[ast.expr, ast.expr] | None:
        """(what is shown, what is expected); None where neither side is constant."""
        for shown, expected in ((left, right), (right, left)):
            fixed = is_literal(expected) or (self._constant(expected) and (self._steady or _is_class(expected)))
            if fixed and not is_literal(shown):
                other = self._constant(shown) and not is_literal(expected)
                if not other:
                    return shown, expected
        return None

    def _truth(self, test: ast.expr, holds: bool) -> ast.expr:
        return self._site("truth", {"holds": holds}, ast.Call(ast.Name("bool", ast.Load()), [test], []), None)

    def _site(self, kind: str, options: dict[str, Any], shown: ast.expr, expected: ast.expr | None) -> ast.expr:
        number = len(self.sites)
        if not self._steady and expected is not None and is_literal(expected):
            options = {**options, "literal": ast.unparse(expected)}
        self.sites.append(AssertionSite(kind, options, self._steady))
        given = [ast.Constant(number), shown]
        if self.recording and expected is not None:
            given.append(expected)
        return ast.Call(ast.Name(OBSERVER, ast.Load()), given, [])


def _names_of(module: ast.Module) -> set[str]:
    """Return what a module binds at its top, once it is imported."""
    found: set[str] = set()
    for node in module.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, Function | ast.ClassDef):
            found.add(node.name)
    return found


def _list_raised(module: ast.Module) -> list[ast.expr]:
    """Every exception that a test of the file names."""
    found: list[ast.expr] = []
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and called_name(node) in RAISING and node.args:
            first = node.args[0]
            found += first.elts if isinstance(first, ast.Tuple) else [first]
    return found


def _catches(node: ast.AST) -> bool:
    """Return whether a handler, or a block that is to raise, would catch a failing assertion."""
    kinds: list[ast.expr] = []
    if isinstance(node, ast.ExceptHandler):
        if node.type is None:
            return True
        kinds = [node.type]
    elif isinstance(node, ast.Call) and called_name(node) in RAISING:
        kinds = node.args[:1]
    names = {called_name(part) for kind in kinds for part in (kind.elts if isinstance(kind, ast.Tuple) else [kind])}
    return bool(names & {"AssertionError", "Exception", "BaseException"})


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _dot(node: ast.AST) -> str:
    return ast.unparse(node.func if isinstance(node, ast.Call) else node)


def _is_class(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(getattr(builtins, node.id, None), type)
