"""A hostile archive is refused on the way out, before it has an effect outside its destination."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from agentrl.tools.sandbox import PathError
from agentrl.tools.sandbox.archive import unpack
from agentrl.tools.sandbox.docker import DockerSandbox
from tests.redteam.archives import ARCHIVES, LIMITS, MAKER
from tests.redteam.attack import Attack, ids
from tests.tools.sandbox.attacks.conftest import Attack as Run

pytestmark = pytest.mark.slow


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
