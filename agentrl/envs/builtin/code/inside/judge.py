"""The judge: runs the hidden tests against the solution, and counts assertions."""

from __future__ import annotations

import ast
import builtins
import io
import json
import os
import sys
from typing import Any

from agentrl.envs.builtin.code.inside.solution import Handle, Solution, SolutionLost
from agentrl.envs.builtin.code.inside.worker import words_of, worker

PR_SET_DUMPABLE = 4


class StopTests(BaseException):
    """A test failed, and the rest would not change the verdict."""


class Counted(ast.NodeTransformer):
    """Every `assert` of the tests becomes one that is counted, and a failed one does not hide the next.

    A call whose result is unused is made for its effect on its arguments.
    """

    def __init__(self) -> None:
        self.number = 0

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """Wrap it in try and except."""
        self.number += not (isinstance(node.test, ast.Constant) and not node.test.value)  # `assert False`
        wrapped = ast.parse("try: pass\nexcept Exception as _error: _failed(_error)\nelse: _passed()").body[0]
        assert isinstance(wrapped, ast.Try)
        wrapped.body = [node]
        return ast.fix_missing_locations(ast.copy_location(wrapped, node))

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Replace it by a call through `_called`."""
        call = node.value
        if isinstance(call, ast.Call) and not (isinstance(call.func, ast.Name) and hasattr(builtins, call.func.id)):
            call.args.insert(0, call.func)
            call.func = ast.Name("_called", ast.Load())
        return ast.fix_missing_locations(node)


class Names:
    """The names that sources use, those that they call, and those that they define somewhere."""

    def __init__(self, sources: list[ast.Module]) -> None:
        self.used: set[str] = set()
        self.called: set[str] = set()
        self.defined: set[str] = set()
        for source in sources:
            for node in ast.walk(source):
                self._take(node)

    def _take(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            (self.used if isinstance(node.ctx, ast.Load) else self.defined).add(node.id)
        elif isinstance(node, ast.arg):
            self.defined.add(node.arg)
        elif isinstance(node, ast.alias):
            self.defined.add((node.asname or node.name).split(".")[0])
        elif isinstance(getattr(node, "name", None), str):  # functions, classes, exceptions, patterns
            self.defined.add(node.name)  # type: ignore[attr-defined]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            self.called.add(node.func.id)


class Judge:
    """Runs the tests of one job, and counts assertions."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.passed = 0
        self.errors: list[str] = []
        counting = Counted()
        self.tests: list[ast.Module] = [ast.parse(test) for test in job["tests"]]
        names = Names(self.tests)
        self.tests = [counting.visit(test) for test in self.tests]
        self.asserts = counting.number
        self.space: dict[str, Any] = {"__name__": "tests", "_passed": self._pass, "_failed": self._fail}
        self.space["_called"] = called
        exec(compile(job["trusted"], "<task>", "exec"), self.space)
        self.wanted = self._wanted(names)

    def _wanted(self, names: Names) -> set[str]:
        """The names that the solution defines; any other undefined name is a mistake in the tests."""
        entry, named = self.job["entry_point"], set(self.job["names"])
        unknown = names.used - names.defined - set(self.space) - set(dir(builtins)) - named - {entry}
        for name in sorted(unknown & set(getattr(sys, "stdlib_module_names", ()))):
            self.space[name] = __import__(name)  # never from the solution
        unknown -= set(self.space)
        wanted = (named | {entry}) if entry or named else unknown & names.called
        if unknown - wanted and "*" not in names.defined:
            name = min(unknown - wanted)
            raise NameError(f"the tests use {name!r} and don't define it: if the solution is to, say so (names=)")
        return wanted - {None}

    def run(self, solution: Solution) -> None:
        """Load the code, define its names for the tests, and run them."""
        try:
            for source in self.job["code"]:
                solution.request("load", source)
            for name in sorted(self.wanted):
                self._define(solution, name)
            for test in self.tests:
                self._run(test)
        except BaseException as error:
            if error is not solution.lost:
                self._note(error)
        if solution.lost:  # whatever the tests caught
            self._note(solution.lost)
        if not self.errors and not self.passed:
            self.errors.append("no assertion of the tests was reached")

    def _define(self, solution: Solution, name: str) -> None:
        """Define a name of the solution for the tests: a class where it is capitalised, else a function."""
        try:
            self.space[name] = solution.request("global", name, answer=not name.lstrip("_")[:1].isupper())
        except KeyError:
            if name == self.job["entry_point"]:
                raise NameError(f"there is no function {name!r}") from None

    def _run(self, test: ast.Module) -> None:
        failed = len(self.errors)
        try:
            exec(compile(test, "<tests>", "exec"), self.space)
            check = self.space.pop("check", None)
            if check is not None and self.job["entry_point"]:
                check(self.space[self.job["entry_point"]])
        except Exception as error:
            self._fail(error)
        if not self.asserts and len(self.errors) == failed:
            self._pass()

    def _pass(self) -> None:
        self.passed += 1

    def _fail(self, error: BaseException) -> None:
        self._note(error)
        if not self.job["partial"]:
            raise StopTests

    def _note(self, error: BaseException) -> None:
        if not isinstance(error, StopTests):
            self.errors.append(str(error) if isinstance(error, SolutionLost) else words_of(error))


def called(function: Any, /, *args: Any, **kwargs: Any) -> None:
    """Make a call for its effect on its arguments, which is applied to the tests' own objects."""
    if isinstance(function, Handle):
        function._solution.change(function, args, kwargs)
    else:
        function(*args, **kwargs)


def judge(program: str, out: int) -> None:
    """Read a job from the standard input, and write its verdict after its nonce."""
    import ctypes

    if ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError("the judge could not hide its memory")
    job = json.loads(sys.stdin.buffer.read())
    sys.stdin, sys.stdout = io.StringIO(), io.StringIO()
    verdict: dict[str, Any] = {}
    try:
        judging = Judge(job)
        total = max(judging.asserts, 1)
    except Exception as error:
        verdict = {"broken": words_of(error)}
    else:
        solution = Solution(program)
        judging.run(solution)
        solution.end()
        failed = len(judging.errors)
        verdict = {"passed": judging.passed, "failed": failed, "total": max(total, judging.passed + failed)}
        verdict["error"] = judging.errors[0] if failed else None
    os.write(out, (job["nonce"] + json.dumps(verdict) + "\n").encode())


def main(program: str, role: str, *descriptors: str) -> None:
    """Run as the judge, or as the worker that it starts."""
    if role == "worker":
        worker(*[int(descriptor) for descriptor in descriptors])
    else:
        judge(program, os.dup(1))
