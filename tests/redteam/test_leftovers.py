"""A sandbox without a container is emptied, copied and removed without anything outside of it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.errors import AgentRLError
from agentrl.tools.sandbox.base import Sandbox
from agentrl.tools.sandbox.local import create_subprocess
from tests.redteam.attack import Attack, ids
from tests.redteam.leftovers import LEFTOVERS, REPLACED
from tests.tools.sandbox.conftest import SMALL

pytestmark = pytest.mark.slow


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    made = await create_subprocess(SMALL)
    yield made
    await made.close()


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "kept").write_text("kept")
    return folder


async def attacked(sandbox: Sandbox, case: Attack, outside: Path) -> None:
    program = f"import os, socket\noutside = {str(outside)!r}\n{case.payload}\nprint('made')"
    result = await sandbox.exec(["python3", "-c", program], timeout=20)
    assert result.stdout == b"made\n", result.stderr


@pytest.mark.parametrize("case", [*LEFTOVERS, *REPLACED], ids=ids([*LEFTOVERS, *REPLACED]))
async def test_nothing_outside_is_emptied_or_seen_again(case: Attack, sandbox: Sandbox, outside: Path) -> None:
    await attacked(sandbox, case, outside)
    try:
        await sandbox.reset()
    except AgentRLError:
        pass
    else:
        seen = await sandbox.exec("pwd -P; ls -A . ../tmp", timeout=20)
        assert seen.stdout.decode().split()[1:] == [".:", "../tmp:"], case.must_not
        assert str(outside) not in seen.stdout.decode()
    await sandbox.close()
    assert (outside / "kept").read_text() == "kept", case.must_not
    assert os.listdir(outside) == ["kept"]


@pytest.mark.parametrize("case", LEFTOVERS, ids=ids(LEFTOVERS))
async def test_nothing_outside_is_copied(case: Attack, sandbox: Sandbox, outside: Path, tmp_path: Path) -> None:
    await attacked(sandbox, case, outside)
    for copying in (sandbox.download("/work", tmp_path / "copy"), sandbox.snapshot()):
        try:
            await copying
        except AgentRLError:
            continue
    linked = "os.link" in case.payload  # a name of its own for the file: it is in the sandbox
    copied = [file for file in (tmp_path / "copy").rglob("*") if file.is_file() and not file.is_symlink()]
    assert linked or not [file for file in copied if file.read_text() == "kept"], case.must_not
    assert (outside / "kept").read_text() == "kept"
