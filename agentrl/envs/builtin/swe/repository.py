"""From a task's commits to a git repository, the same one everywhere.

`git fast-import` takes a whole history as one stream: one command in the sandbox, whatever the number of commits,
independent of the clock and the user's configuration. The commit's hash is computed here as well, as git defines it
(git's documentation, "Git Objects"), so that a task's `base_commit` is known without a sandbox.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence

from agentrl.envs.builtin.swe.task import Commit

BRANCH = "main"


def setup(workdir: str) -> str:
    """The shell line that makes a repository at `workdir` out of `fast_import`'s stream on its standard input."""
    steps = (
        f"mkdir -p {shlex.quote(workdir)} && cd {shlex.quote(workdir)}",
        f"git init -q -b {BRANCH} && git fast-import --quiet && git reset -q --hard",
        "git config user.name agent && git config user.email agent@example.org",
    )
    return " && ".join(steps)


def fast_import(commits: Sequence[Commit]) -> bytes:
    """The history as a `git fast-import` stream; see https://git-scm.com/docs/git-fast-import."""
    parts = []
    for number, commit in enumerate(commits, 1):
        stamp = f"{commit.author} {commit.time} +0000"
        parts.append(f"commit refs/heads/{BRANCH}\nmark :{number}\nauthor {stamp}\ncommitter {stamp}\n".encode())
        parts.append(_data(commit.message.rstrip("\n") + "\n"))
        files = sorted(commit.files.items())
        parts += [f"D {_quoted(path)}\n".encode() for path, text in files if text is None]
        parts += [
            f"M 100644 inline {_quoted(path)}\n".encode() + _data(text) for path, text in files if text is not None
        ]
        parts.append(b"\n")
    return b"".join(parts) + b"done\n"


def commit_id(commits: Sequence[Commit]) -> str:
    """The hash that git gives the last of `commits`: 40 hexadecimal digits."""
    tree: dict[str, str] = {}
    parent = ""
    for commit in commits:
        for path, text in commit.files.items():
            if text is None:
                tree.pop(path, None)
            else:
                tree[path] = text
        stamp = f"{commit.author} {commit.time} +0000"
        lines = [f"tree {_tree_id(tree)}", *([f"parent {parent}"] if parent else []), f"author {stamp}"]
        text = "\n".join([*lines, f"committer {stamp}", "", commit.message.rstrip("\n"), ""])
        parent = _object("commit", text.encode())
    return parent


def _tree_id(files: Mapping[str, str]) -> str:
    rows: dict[bytes, bytes] = {}
    folders: dict[str, dict[str, str]] = {}
    for path, text in files.items():
        head, slash, rest = path.partition("/")
        if slash:
            folders.setdefault(head, {})[rest] = text
        else:
            rows[head.encode()] = f"100644 {head}\0".encode() + bytes.fromhex(_object("blob", text.encode()))
    for name, inner in folders.items():  # git sorts a folder as if its name ended in a slash
        rows[name.encode() + b"/"] = f"40000 {name}\0".encode() + bytes.fromhex(_tree_id(inner))
    return _object("tree", b"".join(rows[name] for name in sorted(rows)))


def _object(kind: str, data: bytes) -> str:
    return hashlib.sha1(f"{kind} {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()


def _data(text: str) -> bytes:
    data = text.encode()
    return f"data {len(data)}\n".encode() + data + b"\n"


def _quoted(path: str) -> str:
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
