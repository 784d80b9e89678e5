"""What an agent changed is found by us, whatever its git says, and can be handed on as a patch."""

from __future__ import annotations

import difflib
import io
import subprocess
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.envs.builtin.swe import patch
from agentrl.envs.builtin.swe.changes import (
    EXECUTABLE,
    LINK,
    REGULAR,
    File,
    PatchRefused,
    apply_changes,
    difference,
    read_tar,
    write_tar,
)
from agentrl.envs.builtin.swe.patch import as_patch, read_patch
from agentrl.errors import InvalidInput

NAMES = st.sampled_from(["a", "b/c", "b/d e", "ü", 'q"uote', "tab\there", "b/x/y.py", "z\\w"])
CONTENTS = st.one_of(
    st.lists(
        st.sampled_from([b"one\n", b"two\r\n", b"\n", b"  three\n", "dré\n".encode(), b"\x0cform\n"]), max_size=12
    ).map(b"".join),
    st.binary(max_size=200),
    st.just(b"no newline"),
)
FILES = st.builds(File, CONTENTS, st.sampled_from([REGULAR, EXECUTABLE]))
LINKS = st.builds(File, st.sampled_from([b"a", b"/etc/hostname", b"../up"]), st.just(LINK))
TREES = st.dictionaries(NAMES, st.one_of(FILES, FILES, LINKS), max_size=6)


@given(TREES)
@pytest.mark.slow
def test_a_tree_comes_out_of_its_archive_as_it_went_in(tree: dict[str, File]) -> None:
    assert read_tar(write_tar(tree)) == tree


@given(TREES, TREES)
@pytest.mark.slow
def test_applying_a_difference_gives_the_other_tree(base: dict[str, File], now: dict[str, File]) -> None:
    assert apply_changes(base, difference(base, now)) == now


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(TREES, TREES)
def test_git_applies_our_patch_and_gets_the_same_tree(base: dict[str, File], now: dict[str, File]) -> None:
    import tempfile

    patch = as_patch(base, difference(base, now))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with tarfile.open(fileobj=io.BytesIO(write_tar(base))) as tar:
            tar.extractall(folder, filter="fully_trusted")
        if patch:
            clean = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "PATH": "/usr/bin:/bin"}
            command = ["git", "apply", "--whitespace=nowarn", "-"]
            done = subprocess.run(command, cwd=folder, input=patch, capture_output=True, env=clean, check=False)
            assert done.returncode == 0, done.stderr
        body = io.BytesIO()
        with tarfile.open(fileobj=body, mode="w", format=tarfile.GNU_FORMAT) as tar:
            tar.add(folder, ".")
        assert read_tar(body.getvalue()) == now


def test_caches_and_git_data_are_no_part_of_a_tree_wherever_they_are() -> None:
    tree = {"a.py": File(b"1"), "vendor/.git/config": File(b"x"), "p/__pycache__/a.cpython-311.pyc": File(b"x")}
    assert read_tar(write_tar(tree)) == {"a.py": File(b"1")}
    assert difference({"a.py": File(b"1"), ".git/HEAD": File(b"x")}, {"a.py": File(b"1")}) == {}


def test_a_hard_link_is_a_file_of_its_own() -> None:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as tar:
        first = tarfile.TarInfo("a")
        first.size = 2
        tar.addfile(first, io.BytesIO(b"hi"))
        second = tarfile.TarInfo("b")
        second.type, second.linkname = tarfile.LNKTYPE, "a"
        tar.addfile(second)
    assert read_tar(body.getvalue()) == {"a": File(b"hi"), "b": File(b"hi")}


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside", "a/../../outside"])
def test_a_name_that_leads_outside_is_refused(name: str) -> None:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    with pytest.raises(PatchRefused, match="outside"):
        read_tar(body.getvalue())


@given(st.binary(max_size=2000))
def test_invalid_input_is_an_empty_tree_or_refused(data: bytes) -> None:
    try:
        tree = read_tar(data)
    except PatchRefused:
        return
    assert all(isinstance(file, File) for file in tree.values())


@given(TREES, TREES)
@pytest.mark.slow
def test_reading_a_text_patch_gives_the_changes_that_it_was_written_from(
    base: dict[str, File], now: dict[str, File]
) -> None:
    changes = difference(base, now)
    patch = as_patch(base, changes)
    if b"\nGIT binary patch\n" in patch:
        with pytest.raises(InvalidInput, match="binary"):
            read_patch(base, patch)
    else:
        assert read_patch(base, patch) == changes


def test_a_patch_that_does_not_fit_is_refused() -> None:
    patch = as_patch({"a": File(b"one\n")}, {"a": File(b"two\n")})
    with pytest.raises(InvalidInput, match="does not fit"):
        read_patch({"a": File(b"three\n")}, patch)


# ------------------------------------------------------------------------------------- hostile sizes


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (b"a\n" * 12_000, b"a\n" * 11_000 + b"b\n"),
        (b"a\n" * 12_000, b"b\n" + b"a\n" * 11_000 + b"b\n"),
        (b"".join(b"a%d\nx\n" % i for i in range(4000)), b"".join(b"a%d\ny\n" % i for i in range(4000))),
        (b"", b"x\n" * 9000),
        (b"x\n" * 9000 + b"end", b""),
        (b"head\n" + b"x\n" * 9000 + b"tail", b"head\n" + b"y\n" * 9000 + b"tail"),
    ],
)
def test_a_patch_of_lines_chosen_to_be_slow_is_bounded_work_and_still_exact(
    was: bytes, now: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 KiB of one line froze the controller for 23 s: difflib compared every line with every other."""
    given: list[tuple[list[bytes], list[bytes]]] = []
    real = difflib.SequenceMatcher

    def counted(junk: None, a: list[bytes], b: list[bytes], *words: bool, **more: bool) -> Any:
        given.append((a, b))
        return real(junk, a, b, *words, **more)

    monkeypatch.setattr(difflib, "SequenceMatcher", counted)
    base, changes = {"f": File(was, REGULAR)}, {"f": File(now, REGULAR)}
    assert read_patch(base, as_patch(base, changes)) == changes
    for a, b in given:
        assert len(a) + len(b) <= patch.MAX_LINES
        often = Counter(b)
        assert sum(often[line] for line in a) <= patch.MAX_PAIRS


def test_a_patch_with_a_limit_looks_at_no_further_file() -> None:
    changes = {f"f{i:03d}": File(b"line\n" * 100, REGULAR) for i in range(500)}
    whole = as_patch({}, changes)
    assert as_patch({}, changes, 2000) == whole[:2000]
