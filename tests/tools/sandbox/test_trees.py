"""Trees as archives: what goes in comes out, and no bytes at all get an archive past its destination."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.tools.sandbox.archive import pack, unpack
from agentrl.tools.sandbox.base import PathError
from agentrl.tools.sandbox.local import create_subprocess
from agentrl.tools.sandbox.runner.loop import blocking
from agentrl.tools.sandbox.runner.resident import ResidentSandbox
from agentrl.tools.sandbox.spec import SandboxSpec

NAMES = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=20),
    st.integers(90, 200).map(lambda length: "n" * length),
).filter(lambda name: name not in (".", "..") and len(name.encode()) < 250)
CONTENT = st.one_of(st.binary(max_size=600), st.integers(0, 70_000).map(lambda size: b"\xff" * size))
TREES = st.recursive(
    st.dictionaries(NAMES, CONTENT, max_size=3), lambda t: st.dictionaries(NAMES, CONTENT | t, max_size=3)
)
Tree = dict[str, "bytes | Tree"]


def grow(tree: Tree, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, what in tree.items():
        if isinstance(what, bytes):
            (folder / name).write_bytes(what)
            (folder / name).chmod(0o755 if len(what) % 2 else 0o644)
        else:
            grow(what, folder / name)


def seen(folder: Path) -> Tree:
    def look(path: Path) -> bytes | Tree:
        if path.is_dir():
            return seen(path)
        assert bool(path.stat().st_mode & 0o100) == bool(path.stat().st_size % 2)
        return path.read_bytes()

    return {path.name: look(path) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[ResidentSandbox]:
    made = blocking(create_subprocess(SandboxSpec()), 60)
    assert isinstance(made, ResidentSandbox)
    yield made
    blocking(made.close(), 60)


@settings(max_examples=25, deadline=None)
@given(TREES)
@pytest.mark.slow
def test_a_tree_comes_out_of_a_sandbox_as_it_went_in(sandbox: ResidentSandbox, tree: Tree) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        grow(tree, Path(scratch) / "in")
        blocking(sandbox.exec("rm -rf tree"), 30)
        blocking(sandbox.upload(Path(scratch) / "in", "tree"), 30)
        blocking(sandbox.download("tree", Path(scratch) / "out"), 30)
        assert seen(Path(scratch) / "out") == tree


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(TREES, st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=12), st.integers(0, 1 << 20))
def test_a_damaged_archive_is_unpacked_or_refused_and_touches_nothing_else(
    tree: Tree, damage: list[tuple[int, int]], cut: int
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        grow(tree, Path(scratch) / "in")
        body = bytearray(pack(Path(scratch) / "in"))
        for place, value in damage:
            body[place % min(len(body), 4096)] = value
        for at in range(0, 4096, 512):  # a damaged header that is taken for a sound one
            if body[at + 257 : at + 262] == b"ustar":
                total = sum(body[at : at + 148]) + 8 * 32 + sum(body[at + 156 : at + 512])
                body[at + 148 : at + 156] = b"%06o\0 " % total
        before = seen(Path(scratch) / "in")
        archive = io.BytesIO(body[: cut % len(body) + 1] if cut % 3 == 0 else body)
        with contextlib.suppress(PathError):
            unpack(archive, Path(scratch) / "a" / "out")
        assert sorted(os.listdir(scratch)) == ["a", "in"]
        assert os.listdir(Path(scratch) / "a") == ["out"]
        assert seen(Path(scratch) / "in") == before
        for path in (Path(scratch) / "a" / "out").rglob("*"):
            assert path.resolve().is_relative_to(Path(scratch).resolve() / "a" / "out")


@pytest.mark.slow
def test_an_archive_is_never_unpacked_through_a_link(tmp_path: Path) -> None:
    """An agent's link and a file of ours below it, in one archive, would else be written wherever the link leads."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w", format=tarfile.GNU_FORMAT) as tar:
        link = tarfile.TarInfo("a")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        tar.addfile(link)
        file = tarfile.TarInfo("a/conftest.py")
        file.size = 1
        tar.addfile(file, io.BytesIO(b"x"))
    sandbox = blocking(create_subprocess(SandboxSpec()))
    try:
        with pytest.raises(PathError, match="symbolic links"):
            blocking(sandbox.upload(body.getvalue(), "."))
        assert list(tmp_path.iterdir()) == []
    finally:
        blocking(sandbox.close())
