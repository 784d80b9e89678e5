"""Removal from a test of all that only held an expectation: constants that nothing reads any more."""

from __future__ import annotations

import ast

from agentrl.envs.builtin.swe.generation.constant import Constants, Function, called, columns, parametrized


def prune(module: ast.Module) -> None:
    """Remove constants that nothing reads any more: they were expected values."""
    for function in [node for node in ast.walk(module) if isinstance(node, Function)]:
        names = Constants(function).pure
        _prune_body(function, names - _loads(function))
        for mark in function.decorator_list:
            if isinstance(mark, ast.Call) and called(mark) == "parametrize":
                _forget_names(mark)
        for given, rows in parametrized(function):
            _prune_rows(rows, [name not in _loads(function) for name in given])
    _prune_body(module, Constants(module).pure - _loads(module))


def _prune_body(owner: ast.AST, dead: set[str]) -> None:
    for node in ast.walk(owner):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name) and target.id in dead:
                node.value = ast.Constant(None)
        elif isinstance(node, ast.For):
            targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
            _prune_rows(node.iter, [isinstance(part, ast.Name) and part.id in dead for part in targets])


def _prune_rows(rows: ast.expr, dead: list[bool]) -> None:
    found = columns(rows, len(dead))
    if found is None or not any(dead) or not isinstance(rows, ast.List | ast.Tuple):
        return
    for index, row in enumerate(found):
        for place, gone in enumerate(dead):
            if gone and len(dead) == 1 and not isinstance(rows.elts[index], ast.Call):
                rows.elts[index] = ast.Constant(None)
            elif gone:
                row[place] = ast.Constant(None)


def _forget_names(mark: ast.Call) -> None:
    """Drop the rows' own names, which may tell what is expected."""
    mark.keywords = [keyword for keyword in mark.keywords if keyword.arg != "ids"]
    for row in getattr(mark.args[1], "elts", []) if len(mark.args) > 1 else []:
        if isinstance(row, ast.Call) and called(row) == "param":
            row.keywords = [keyword for keyword in row.keywords if keyword.arg != "id"]


def _loads(owner: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(owner) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
