"""A hostile archive is refused on the way out, or is a tree as it is, before it has an effect outside of it."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from agentrl.envs.builtin.swe.changes import MAX_BYTES, PatchRefused, read_tar
from agentrl.tools.sandbox.archive import unpack
from agentrl.tools.sandbox.base import PathError
from agentrl.tools.sandbox.docker.backend import DockerSandbox
from tests.redteam.archives import ARCHIVES, LIMITS, MAKER
from tests.redteam.attack import Attack, ids
from tests.tools.sandbox.attacks.conftest import Attack as Run


@pytest.mark.slow
@pytest.mark.parametrize("case", ARCHIVES, ids=ids(ARCHIVES))
async def test_refused(case: Attack, attack: Run, jail: DockerSandbox, tmp_path: Path) -> None:
    made = await attack(MAKER.format(entries=case.payload))
    assert made.stdout == b"made\n", made.stderr
    body = await jail.read("evil.tar")
    inside = tmp_path / "outer" / "inside"
    with pytest.raises(PathError):
        unpack(io.BytesIO(body), inside, LIMITS)
    assert os.listdir(tmp_path) == ["outer"]
    assert os.listdir(tmp_path / "outer") == ["inside"]
    assert "agentrl-evil" not in os.listdir("/tmp")
    assert all(path.resolve().is_relative_to(inside) for path in inside.rglob("*"))


@pytest.mark.parametrize("case", ARCHIVES, ids=ids(ARCHIVES))
def test_no_tree_of_an_agents_holds_what_is_outside(case: Attack, tmp_path: Path) -> None:
    """What software tasks read of a working tree; it is compared, and never unpacked here."""
    exec(MAKER.format(entries=case.payload).replace("/work/evil.tar", str(tmp_path / "evil.tar")), {})
    try:
        tree = read_tar((tmp_path / "evil.tar").read_bytes())
    except PatchRefused:
        return
    assert not [path for path in tree if path.startswith(("/", "../"))], case.must_not
    assert sum(len(file.data) for file in tree.values()) <= MAX_BYTES
    assert os.listdir(tmp_path) == ["evil.tar"]
