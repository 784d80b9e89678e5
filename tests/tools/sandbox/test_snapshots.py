"""A snapshot holds a sandbox's files, whatever they are, and another sandbox restored from it has the same."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable

import pytest

from agentrl.errors import InvalidInput
from agentrl.tools.sandbox.base import Snapshot, SnapshotRefused
from agentrl.tools.sandbox.docker.backend import DockerSandbox
from agentrl.tools.sandbox.docker.plain import create_plain
from agentrl.tools.sandbox.pool import SandboxPool
from agentrl.tools.sandbox.snapshot import canonical, check_trees
from agentrl.tools.sandbox.spec import SandboxSpec
from tests.tools.sandbox.conftest import SMALL, Make

LIMIT = 1 << 20
ROOT = SMALL.model_copy(update={"user": "0:0", "writable_root": True, "disk_mb": None})
ODD = r"""
mkdir -p kept/closed 'a
b' && echo text > kept/file && ln kept/file kept/hard && ln -s /etc/passwd absolute && ln -s ../../.. up
printf x > "$(printf 'nam\377e')" && printf '' > empty && mkfifo fifo && chmod 0751 kept/file && echo 1 > kept/closed/f
touch -h -d '2001-02-03 04:05:06' kept/file kept absolute && chmod 0500 kept/closed
"""
LOOK = "find . -printf '%p %y %m %s %l\\n' | LC_ALL=C sort; cat kept/file kept/hard; stat -c %Y kept/file"


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return body.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def names(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return tar.getnames()


def listed(snapshot: Snapshot) -> list[tuple[object, ...]]:
    """A snapshot's entries, for a difference that can be read."""
    archives = {**snapshot.trees, "layer": snapshot.layer}
    found: list[tuple[object, ...]] = [
        ("removed", *snapshot.removed),
        *((t, len(a), hash(a)) for t, a in archives.items()),
    ]
    for tree, data in archives.items():
        with tarfile.open(fileobj=io.BytesIO(data or archive())) as tar:
            found += [
                (
                    tree,
                    m.name,
                    m.type,
                    m.mode,
                    m.mtime,
                    m.uname,
                    m.uid,
                    m.gid,
                    m.linkname,
                    m.size,
                    m.isreg() and tar.extractfile(m).read(),
                )
                for m in tar
            ]
    return found


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (archive((member("../out"), b"x")), "outside the root"),
        (archive((member("a/../../out"), b"x")), "outside the root"),
        (archive((member("d/" * 300 + "f"), b"x")), "too deep"),
        (archive((member("link", tarfile.LNKTYPE, "missing"), b"")), "hard link to something that is not there"),
        (archive((member("big"), b"x" * LIMIT)), "more than 1048576 bytes"),
        (b"not an archive" * 100, "can't be read as an archive"),
        (archive((member("cut"), b"x" * 5000))[:2000], "can't be read as an archive"),
    ],
)
def test_a_hostile_archive_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(SnapshotRefused, match=words):
        canonical(data, LIMIT)


def test_an_archive_of_the_same_files_is_the_same_in_any_order_and_without_devices() -> None:
    one, other = (member("d/a"), b"1"), (member("b"), b"2")
    device = (member("null", tarfile.CHRTYPE), b"")
    first = canonical(archive(one, other, device, (member("c", tarfile.LNKTYPE, "b"), b"")), LIMIT)
    assert first == canonical(archive((member("./c"), b"2"), (member("./b"), b"2"), (member("/d/a"), b"1")), LIMIT)
    assert names(first) == ["b", "c", "d/a"]


@pytest.mark.slow
async def test_a_restored_sandbox_has_the_same_files_and_no_others(make: Callable[[], DockerSandbox]) -> None:
    first, second, untouched = make(), make(), make()
    assert (await first.exec(ODD)).ok
    await untouched.write("other", "x")
    snapshot = await first.snapshot()
    seen = await first.exec(f"rm fifo; {LOOK}")
    await second.write("other", "x")
    process = await second.start("sleep 300")
    await second.restore(snapshot)
    await process.wait(20.0)
    assert (await second.exec(LOOK)).stdout == seen.stdout
    assert listed(await second.snapshot()) == listed(snapshot)
    assert Snapshot.of(snapshot.plain()) == snapshot
    await untouched.restore(snapshot)
    assert not (await untouched.exec("ls other")).ok
    await second.exec("echo changed > kept/file")
    assert await first.read("kept/file") == b"text\n"


@pytest.mark.slow
async def test_what_is_too_large_or_unreadable_is_refused(make: Callable[[], DockerSandbox]) -> None:
    sandbox = make()
    await sandbox.exec("truncate -s 8M sparse")
    with pytest.raises(SnapshotRefused, match="more than 1048576 bytes"):
        await sandbox.snapshot(LIMIT)
    await sandbox.exec("rm sparse; echo x > secret; chmod 0 secret")
    with pytest.raises(SnapshotRefused, match="/work"):
        await sandbox.snapshot()


@pytest.mark.slow
async def test_changes_of_the_image_are_restored_where_its_root_can_be_written_to(make: Make) -> None:
    first, second, used = make(ROOT), make(ROOT), make(ROOT)
    change = (
        "mkdir -p /opt/new/deep && echo 1 > /opt/new/deep/f && echo 2 >> /etc/issue && rm -rf /usr/share/misc && rm "
        "/etc/skel/.bashrc && rm -r /usr/share/base-files && mkdir /usr/share/base-files && chmod 0711 /usr/share && "
        "echo 3 > /usr/share/base-files/own && ln -s /opt/new /srv/link && echo 4 > /work/w && echo 5 > /tmp/t"
    )
    look = (
        "stat -c %a /usr/share; ls -A /opt/new/deep /usr/share/base-files /etc/skel; ls -d /usr/share/misc; "
        "cat /etc/issue /srv/link/deep/f /work/w /tmp/t"
    )
    assert (await first.exec(change)).ok
    seen, snapshot = await first.exec(look), await first.snapshot()
    assert snapshot.layer
    assert "/etc/skel/.bashrc" in snapshot.removed
    await second.restore(snapshot)
    assert (await second.exec(look)).text() == seen.text()
    assert listed(await second.snapshot()) == listed(snapshot)
    await used.exec("true")
    with pytest.raises(InvalidInput, match="no command has run"):
        await used.restore(snapshot)
    with pytest.raises(InvalidInput, match="writable_root"):
        await make(SMALL).restore(snapshot)


@pytest.mark.slow
async def test_plain_exec_takes_and_restores_the_same_snapshots(make: Callable[[], DockerSandbox]) -> None:
    resident, plain = make(), await create_plain(SMALL, "a test")
    try:
        assert (await resident.exec(ODD)).ok
        snapshot = await resident.snapshot()
        await plain.write("other", "x")
        await plain.restore(snapshot)
        assert listed(await plain.snapshot()) == listed(snapshot)
        other = await plain.fork()
        try:
            assert await other.read("kept/file") == b"text\n"
        finally:
            await other.close()
    finally:
        await plain.close()


def test_a_snapshot_of_other_trees_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"\['/elsewhere'\].*\['/tmp', '/work'\]"):
        check_trees(Snapshot({"/elsewhere": b""}), SandboxSpec())


@pytest.mark.slow
async def test_a_restored_sandbox_that_comes_back_to_its_pool_is_emptied(docker: None) -> None:
    pool = SandboxPool(total=1, recycle=True)
    try:
        async with pool.lease(SMALL) as sandbox:
            await sandbox.write("first", "x")
            snapshot, id = await sandbox.snapshot(), sandbox.id
        async with pool.lease(SMALL) as sandbox:
            assert sandbox.id == id
            assert not (await sandbox.exec("ls first")).ok
            await sandbox.restore(snapshot)
            assert (await sandbox.exec("ls first")).ok
        async with pool.lease(SMALL) as sandbox:
            assert sandbox.id == id
            assert not (await sandbox.exec("ls first")).ok
    finally:
        await pool.close()
