"""Extracting the code from a reply.

Models fence their code or not, repeat the given signature or continue after it, and write drafts. So the order is: the
last fenced block that defines the function, the whole reply if it does, what completes the prompt, the last fenced
block. Replies are untrusted text: nothing is executed here, and all of it takes linear time.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator

from agentrl.envs.builtin.code.judging import MAX_CODE

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)")
PYTHON = ("", "python", "py", "python3", "Python", "pycon")


def extract(reply: str, entry_point: str | None = None, prompt: str = "") -> tuple[str, ...] | None:
    """The sources to load, in order; None where the reply contains no code.

    Args:
        reply: the model's answer.
        entry_point: the function to write.
        prompt: code that ends in that function's signature and docstring, where there is any.
    """
    blocks = list(fenced(reply))[::-1]
    texts = [text for text in [*blocks, reply] if text.strip() and len(text) <= MAX_CODE]
    if entry_point is not None:
        for text in texts:
            if defines(text, entry_point):
                return (preamble(prompt, entry_point), text) if prompt else (text,)
        if prompt:
            for text in texts:
                for body in (text, "    " + text.lstrip()):  # chat formats strip a reply's first indentation
                    if (
                        body[:1].isspace()
                        and _parsed(whole := f"{prompt.rstrip()}\n{body.lstrip(chr(10))}") is not None
                    ):
                        return (whole,)
    if blocks and blocks[0] in texts:
        return (blocks[0],)
    return (reply,) if texts and _parsed(reply) is not None else None


def fenced(reply: str) -> Iterator[str]:
    """The contents of fenced blocks of Python (or of no named language), in order; the last may be left open."""
    mark, language, lines = "", "", list[str]()
    for line in reply.split("\n"):
        fence = _FENCE.match(line)
        if mark and fence and fence[1].startswith(mark) and not fence[2]:
            if language in PYTHON:
                yield textwrap.dedent("\n".join(lines))
            mark = ""
        elif mark:
            lines.append(line)
        elif fence:
            mark, language, lines = fence[1], fence[2], []
    if mark and language in PYTHON:
        yield textwrap.dedent("\n".join(lines))


def defines(text: str, name: str) -> bool:
    """Return whether a source defines a name at its top level."""
    tree = _parsed(text)
    return tree is not None and any(name in _names(node) for node in tree.body)


def preamble(prompt: str, entry_point: str) -> str:
    """The part of a prompt before the function to write: imports and helpers."""
    tree = _parsed(prompt) or _parsed(f"{prompt.rstrip()}\n    pass\n")
    if tree is None:
        return ""
    kept = [node for node in tree.body if entry_point not in _names(node)]
    return "\n".join(ast.unparse(node) for node in kept)


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return set()


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
