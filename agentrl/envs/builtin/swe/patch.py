"""Changes as text, in git's extended diff format, which `git apply` accepts.

Not written by `git diff`, whose output depends on configuration and attributes that the agent may have changed. The
format is documented with git (diff-generate-patch, and the comments in its apply.c for binary literals).
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from agentrl.envs.builtin.swe.changes import REGULAR, Changes, File, Tree
from agentrl.errors import InvalidInput

NO_NEWLINE = b"\\ No newline at end of file\n"
CONTEXT = 3
MAX_LINES, MAX_PAIRS = 4000, 1_000_000
"""The most that difflib is given: lines of both sides between their common ends, and pairs of equal lines among them.

Its worst case within these takes a second; beyond them the lines between the common ends are replaced as a whole.
"""
_PLAIN = frozenset(range(0x20, 0x7F)) - frozenset(b'"\\')


def as_patch(base: Tree, changes: Changes, limit: int | None = None) -> bytes:
    """The patch that turns the base into what it became.

    Args:
        base: the files before.
        changes: what became of those that changed.
        limit: bytes after which no further file is looked at, and at which the patch is cut.
    """
    parts = list[bytes]()
    for path, file in sorted(changes.items()):
        parts += _file(path, base.get(path), file)
        if limit is not None and sum(map(len, parts)) > limit:
            break
    return b"".join(parts)[:limit]


def _file(path: str, before: File | None, after: File | None) -> Iterator[bytes]:
    if before is not None and after is not None and before.mode >> 12 != after.mode >> 12:  # a link became a file
        yield from _file(path, before, None)
        yield from _file(path, None, after)
        return
    old, new = _quote("a/" + path), _quote("b/" + path)
    yield b"diff --git %s %s\n" % (old, new)
    old_mode, new_mode = (file.mode if file else None for file in (before, after))
    if old_mode is None:
        yield b"new file mode %o\n" % (new_mode or REGULAR)
    elif new_mode is None:
        yield b"deleted file mode %o\n" % old_mode
    elif old_mode != new_mode:
        yield b"old mode %o\nnew mode %o\n" % (old_mode, new_mode)
    was, now = before.data if before else b"", after.data if after else b""
    if was == now:
        return
    suffix = b" %o" % old_mode if old_mode == new_mode and old_mode else b""
    yield b"index %s..%s%s\n" % (_blob(before), _blob(after), suffix)
    if b"\0" in was or b"\0" in now:
        yield b"GIT binary patch\n" + _literal(now) + b"\n" + _literal(was) + b"\n"
        return
    yield b"--- %s\n+++ %s\n" % (old if before else b"/dev/null", new if after else b"/dev/null")
    yield from _hunks(was, now)


def _hunks(was: bytes, now: bytes) -> Iterator[bytes]:
    old, new = _lines(was), _lines(now)
    matcher = difflib.SequenceMatcher(None, b"", b"")
    matcher.opcodes = _opcodes(old, new)  # type: ignore[attr-defined]  # what it would otherwise compute
    for group in matcher.get_grouped_opcodes(CONTEXT):
        first, last = group[0], group[-1]
        yield b"@@ -%s +%s @@\n" % (_range(first[1], last[2]), _range(first[3], last[4]))
        for kind, a, b, c, d in group:
            if kind == "equal":
                yield from (_line(b" ", line) for line in old[a:b])
            else:
                yield from (_line(b"-", line) for line in old[a:b])
                yield from (_line(b"+", line) for line in new[c:d])


def _opcodes(old: Sequence[bytes], new: Sequence[bytes]) -> list[tuple[str, int, int, int, int]]:
    """Return how the old lines become the new ones.

    What both begin and end with is matched first; the rest by difflib, or replaced as a whole where that would take too
    long: its time grows with the pairs of equal lines and with the square of the lines, and an agent chooses both.
    """
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    a, b = old[head : len(old) - tail], new[head : len(new) - tail]
    often = Counter(b)
    if len(a) + len(b) <= MAX_LINES and sum(often[line] for line in a) <= MAX_PAIRS:
        middle = list(difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes())
    else:
        middle = [("replace", 0, len(a), 0, len(b))]
    whole = [("equal", 0, head, 0, head)] if head else list[Any]()
    whole += [(kind, i + head, j + head, k + head, m + head) for kind, i, j, k, m in middle]
    ends = len(old), len(new)
    return [*whole, ("equal", ends[0] - tail, ends[0], ends[1] - tail, ends[1])] if tail else whole


def _common(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _lines(data: bytes) -> list[bytes]:
    """Lines as git has them: only a newline ends one."""
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _line(sign: bytes, line: bytes) -> bytes:
    return sign + line if line.endswith(b"\n") else sign + line + b"\n" + NO_NEWLINE


def _range(start: int, end: int) -> bytes:
    length = end - start
    return b"%d,%d" % (start + 1 if length else start, length) if length != 1 else b"%d" % (start + 1)


def _literal(data: bytes) -> bytes:
    """Binary content: deflated, in lines of up to 52 bytes, each behind its length as a letter, in base 85."""
    packed = zlib.compress(data)
    lines = [packed[i : i + 52] for i in range(0, len(packed), 52)]
    return b"literal %d\n" % len(data) + b"".join(
        bytes([len(line) + (64 if line and len(line) <= 26 else 70)]) + base64.b85encode(line, pad=True) + b"\n"
        for line in lines
    )


def _blob(file: File | None) -> bytes:
    """A blob's whole name, which git asks for where content is binary."""
    if file is None:
        return b"0" * 40
    return hashlib.sha1(b"blob %d\0" % len(file.data) + file.data, usedforsecurity=False).hexdigest().encode()


def _quote(path: str) -> bytes:
    """A path as git writes it: in C's quotes where it holds anything unusual."""
    raw = path.encode("utf-8", "surrogateescape")
    if all(byte in _PLAIN for byte in raw):
        return raw
    known = {0x22: b'\\"', 0x5C: b"\\\\", 0x0A: b"\\n", 0x09: b"\\t", 0x0D: b"\\r"}
    return b'"' + b"".join(known.get(b) or (bytes([b]) if b in _PLAIN else b"\\%03o" % b) for b in raw) + b'"'


# ------------------------------------------------------------------------------------------------- reading

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def read_patch(base: Tree, text: bytes) -> dict[str, File | None]:
    """Return a text patch's changes of the tree that it was made from; every hunk must fit exactly.

    Raises:
        InvalidInput: it does not fit, is binary, or is no patch in git's format.
    """
    tree: dict[str, File] = dict(base)
    touched: set[str] = set()
    for part in re.split(rb"^(?=diff --git )", text, flags=re.MULTILINE):
        if part.startswith(b"diff --git "):
            _apply(part, base, tree, touched)
        elif part.strip():
            raise InvalidInput(f"a patch must begin with 'diff --git', not with {part[:40]!r}")
    changed = {path: tree.get(path) for path in touched}
    return {path: file for path, file in changed.items() if file != base.get(path)}


def _apply(part: bytes, base: Tree, tree: dict[str, File], touched: set[str]) -> None:
    header, *hunks = re.split(rb"^(?=@@ )", part, flags=re.MULTILINE)
    fields = {line.partition(b" ")[0]: line for line in header.splitlines()}
    if b"GIT" in fields or b"Binary" in fields:
        raise InvalidInput("binary patches can't be read here; `git apply` takes them")
    old, new = _names(header)
    modes = re.findall(rb"^(?:new file|new) mode (\d+)$", header, flags=re.MULTILINE)
    before = base.get(old) if old else None
    if old and before is None:
        raise InvalidInput(f"the patch changes {old!r}, which is not there")
    data = _apply_hunks(before.data if before else b"", hunks, new or old or "")
    if old and old != new and b"copy" not in fields:
        tree.pop(old, None)
        touched.add(old)
    if new:
        tree[new] = File(data, int(modes[0], 8) if modes else before.mode if before else REGULAR)
        touched.add(new)


def _names(header: bytes) -> tuple[str | None, str | None]:
    """The old and the new path; None on the side where there is no file."""
    lines = header.splitlines()
    found: list[str | None] = []
    for mark, moved in ((b"--- ", b"from "), (b"+++ ", b"to ")):
        line = next((x[4:].split(b"\t")[0] for x in lines if x.startswith(mark)), None)
        other = next((x.split(b" ", 2)[2] for x in lines if x.startswith((b"rename " + moved, b"copy " + moved))), None)
        if line is not None:
            found.append(None if line == b"/dev/null" else _unquote(line)[2:])
        elif other is not None:
            found.append(_unquote(other))
        else:  # a mode alone, or an empty file: both names are the same
            rest = lines[0][len(b"diff --git ") :]
            half = rest[: len(rest) // 2]
            absent = b"new file" if mark == b"--- " else b"deleted file"
            found.append(None if any(x.startswith(absent) for x in lines) else _unquote(half)[2:])
    return found[0], found[1]


def _apply_hunks(data: bytes, hunks: Sequence[bytes], path: str) -> bytes:
    old, new, at = _lines(data), list[bytes](), 0
    for hunk in hunks:
        head, *lines = _lines(hunk)
        numbers = _HUNK.match(head)
        if numbers is None:
            raise InvalidInput(f"{path}: broken hunk {head[:60]!r}")
        start = int(numbers[1]) - (numbers[2] != b"0")
        body = _join(lines)
        was = [line[1:] for line in body if line[:1] in b" -"]
        if start < at or old[start : start + len(was)] != was:
            raise InvalidInput(f"{path}: the hunk {head.decode(errors='replace').strip()} does not fit")
        new += old[at:start] + [line[1:] for line in body if line[:1] in b" +"]
        at = start + len(was)
    return b"".join(new + old[at:])


def _join(lines: Sequence[bytes]) -> list[bytes]:
    """A hunk's lines, those without a newline as they are; an empty line is one of context (some editors strip)."""
    body: list[bytes] = []
    for line in lines:
        if line.startswith(b"\\") and body:
            body[-1] = body[-1].removesuffix(b"\n")
        elif line[:1] in (b" ", b"-", b"+"):
            body.append(line)
        elif line == b"\n":
            body.append(b" \n")
    return body


def _unquote(path: bytes) -> str:
    if path.startswith(b'"'):
        path = path[1:-1].decode("unicode_escape").encode("latin-1")
    return path.decode("utf-8", "surrogateescape")
