"""An agent's changes: its working tree compared with the base commit's, file by file.

The tree is read from the sandbox as a tar archive, without git: its index, configuration, attributes and history may
all have been rewritten by the agent. So commits, stashes, rebases, a deleted `.git` or a repository inside the
repository make no difference, and nothing can be forged: any archive is a tree that the agent could have made. It is
bounded, and never unpacked here.

Given up: renames are a deletion and a new file, empty directories don't count (nor do they for git), and a file that
`.gitignore` lists counts where git would leave it out, except for the caches in `IGNORED`.
"""

from __future__ import annotations

import io
import posixpath
import stat
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass

from agentrl.errors import AgentError
from agentrl.tools.sandbox.archive import open_file

IGNORED = frozenset({".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"})
"""Names that are no part of a tree, wherever they are: version control, and what tools leave behind."""
IGNORED_ENDINGS = (".pyc", ".pyo")
"""Compiled code is never taken: it could differ from the source that is read."""
MAX_BYTES, MAX_FILES = 32 << 20, 50_000
"""Of a whole tree."""
REGULAR, EXECUTABLE, LINK = 0o100644, 0o100755, 0o120000
"""The modes that git knows of files."""


class PatchRefused(AgentError):
    """The agent's working tree can't be read as a change of the repository."""


@dataclass(frozen=True, slots=True)
class File:
    """A file's content and its mode, as git has them; a symbolic link's content is its target."""

    data: bytes
    mode: int = REGULAR


Tree = Mapping[str, File]
"""Files by their path from the root; names that are not UTF-8 hold surrogates."""
Changes = Mapping[str, File | None]
"""Each path's new content, or None where it was deleted."""


def is_ignored(path: str) -> bool:
    """Return whether a path is no part of a tree."""
    return path.endswith(IGNORED_ENDINGS) or not IGNORED.isdisjoint(path.split("/"))


def read_tar(archive: bytes) -> dict[str, File]:
    """A tree out of an archive that is not trusted; what is no file and no symbolic link is left out.

    Raises:
        PatchRefused: it is broken, too large, or a name in it is outside the root.
    """
    tree: dict[str, File] = {}
    links: list[tuple[str, str]] = []
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            for member in tar:
                path = posixpath.normpath(member.name)
                if path.startswith(("/", "../")) or path == "..":
                    raise PatchRefused(f"the tree contains a name that is outside of it: {member.name[:80]!a}")
                if is_ignored(path):
                    continue
                if member.islnk():
                    links.append((path, posixpath.normpath(member.linkname)))
                elif member.issym():
                    tree[path] = File(member.linkname.encode("utf-8", "surrogateescape"), LINK)
                elif member.isreg() and not member.issparse():
                    tree[path] = File(
                        open_file(tar, member).read(), EXECUTABLE if member.mode & stat.S_IXUSR else REGULAR
                    )
                    total += member.size
                if total > MAX_BYTES or len(tree) > MAX_FILES:
                    raise PatchRefused(f"the tree holds more than {MAX_BYTES >> 20} MB or {MAX_FILES} files")
    except (tarfile.TarError, EOFError, OverflowError, ValueError, OSError) as error:
        raise PatchRefused(f"the tree could not be read: {error}") from None
    for path, target in links:  # a hard link is a file of its own
        if target in tree:
            tree[path] = tree[target]
    return tree


def write_tar(tree: Tree, prefix: str = "") -> bytes:
    """A tree as an archive; the same tree gives the same bytes."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w", format=tarfile.GNU_FORMAT, errors="surrogateescape") as tar:
        for path, file in sorted(tree.items()):
            info = tarfile.TarInfo(prefix + path)
            info.mtime = 1_000_000_000  # in the past: a build that compares times rebuilds nothing
            if file.mode == LINK:
                info.type, info.linkname, info.mode = (
                    tarfile.SYMTYPE,
                    file.data.decode("utf-8", "surrogateescape"),
                    0o777,
                )
                tar.addfile(info)
            else:
                info.size, info.mode = len(file.data), file.mode & 0o777
                tar.addfile(info, io.BytesIO(file.data))
    return body.getvalue()


def difference(base: Tree, now: Tree) -> dict[str, File | None]:
    """Return the changes that turned one tree into the other."""
    changed: dict[str, File | None] = {path: file for path, file in now.items() if base.get(path) != file}
    changed.update(dict.fromkeys(path for path in base if path not in now and not is_ignored(path)))
    return changed


def apply_changes(base: Tree, changes: Changes) -> dict[str, File]:
    """A tree with changes made to it; a file that takes a directory's place removes what was below."""
    tree = {path: file for path, file in base.items() if path not in changes}
    tree |= {path: file for path, file in changes.items() if file is not None}
    files = set(tree)
    return {path: file for path, file in tree.items() if not _below_a_file(path, files)}


def _below_a_file(path: str, files: set[str]) -> bool:
    above = posixpath.dirname(path)
    while above:
        if above in files:
            return True
        above = posixpath.dirname(above)
    return False
