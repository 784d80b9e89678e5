"""Hostile archives on the way out: made inside the jail, read out of it, unpacked here."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from agentrl.tools.sandbox.archive import ArchiveLimits, unpack
from agentrl.tools.sandbox.base import PathError
from agentrl.tools.sandbox.docker.backend import DockerSandbox
from tests.tools.sandbox.attacks.conftest import Attack

pytestmark = pytest.mark.slow


async def test_a_compressed_bomb_is_not_even_opened(attack: Attack, jail: DockerSandbox, tmp_path: Path) -> None:
    made = await attack("""
import gzip
with gzip.open("/work/bomb.tar.gz", "wb") as f:
    for _ in range(200): f.write(b"\\0" * (1 << 20))
print("made")
""")
    assert made.stdout == b"made\n"
    with pytest.raises(PathError):
        unpack(io.BytesIO(await jail.read("bomb.tar.gz")), tmp_path)


async def test_names_that_are_not_utf8_survive_the_way_out_as_bytes(
    attack: Attack, jail: DockerSandbox, tmp_path: Path
) -> None:
    made = await attack("""
os.mkdir(b"/work/t"); open(b"/work/t/\\xff\\xfe\\n\\x01", "wb").write(b"odd"); print("made")
""")
    assert made.stdout == b"made\n"
    await jail.download("t", tmp_path)
    assert os.listdir(os.fsencode(tmp_path)) == [b"\xff\xfe\n\x01"]


async def test_a_tree_of_traps_comes_out_without_its_traps(attack: Attack, jail: DockerSandbox, tmp_path: Path) -> None:
    """Fifos, sockets and unlinked entries are left where they are; hard links come out as files of their own."""
    made = await attack("""
os.mkdir("/work/t"); os.chdir("/work/t")
os.mkfifo("fifo"); socket.socket(socket.AF_UNIX).bind("socket")
open("file", "w").write("text"); os.link("file", "hard"); os.symlink("file", "soft")
print("made")
""")
    assert made.stdout == b"made\n"
    await jail.download("t", tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["file", "hard", "soft"]
    assert (tmp_path / "hard").stat().st_nlink == 1


async def test_a_link_out_of_the_tree_stops_the_download(attack: Attack, jail: DockerSandbox, tmp_path: Path) -> None:
    made = await attack("os.mkdir('/work/t'); os.symlink('/etc/shadow', '/work/t/l'); print('made')")
    assert made.stdout == b"made\n"
    with pytest.raises(PathError, match="links outside"):
        await jail.download("t", tmp_path)
    assert os.listdir(tmp_path) == []


async def test_a_file_that_grows_and_shrinks_while_it_is_read_keeps_the_archive_whole(
    jail: DockerSandbox, tmp_path: Path
) -> None:
    fidget = await jail.start(
        [
            "python3",
            "-c",
            "import os\nos.makedirs('t',exist_ok=True)\nwhile True:\n"
            " for n in (5_000_000, 10, 3_000_000):\n  open('t/f','w').close(); os.truncate('t/f', n)",
        ]
    )
    while not (await jail.exec("[ -s t/f ]")).ok:
        pass
    for turn in range(5):
        await jail.download("t", tmp_path / str(turn))
        assert (tmp_path / str(turn) / "f").exists()
    assert fidget.running
    await fidget.stop()


async def test_more_than_a_sandbox_may_return_is_cut_off(
    jail: DockerSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sparse file costs the sandbox nothing; the way out is bounded by what comes, not by what it says."""
    monkeypatch.setattr("agentrl.tools.sandbox.snapshot.LIMITS", ArchiveLimits(total_bytes=4 << 20))
    assert (await jail.exec("mkdir t && truncate -s 20M t/sparse")).ok
    with pytest.raises(PathError, match="more than"):
        await jail.download("t", tmp_path)
    assert os.listdir(tmp_path) == []
    assert await jail.healthy()
