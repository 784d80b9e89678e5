"""A timeout ends all that a command started, however it hides."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from agentrl.tools.sandbox.base import ExecResult, Outcome, Sandbox
from agentrl.tools.sandbox.docker.backend import DockerSandbox
from agentrl.tools.sandbox.local import create_subprocess
from agentrl.tools.sandbox.runner.loop import blocking
from tests.redteam.attack import Attack, ids
from tests.redteam.escapes import ESCAPES
from tests.tools.sandbox.attacks.conftest import PRELUDE, run_until_late
from tests.tools.sandbox.attacks.conftest import Attack as Run
from tests.tools.sandbox.conftest import SMALL

pytestmark = pytest.mark.slow


def hiding(case: Attack) -> str:
    return f"""
{case.payload}
place = os.path.abspath("alive")
if os.fork() == 0:
    hide()
    open(place, "w").write("begun")
    print("hidden", os.getpid(), flush=True)
    while True:
        open(place, "w").write(str(time.time())); time.sleep(0.02)
time.sleep(600)
"""


async def assert_ended(result: ExecResult, sandbox: Sandbox, case: Attack) -> None:
    assert result.outcome is Outcome.TIMEOUT
    assert b"hidden" in result.stdout
    last = await sandbox.read("alive")
    await asyncio.sleep(0.2)
    assert await sandbox.read("alive") == last, case.must_not


@pytest.mark.parametrize("case", ESCAPES, ids=ids(ESCAPES))
async def test_a_timeout_ends(case: Attack, attack: Run, jail: DockerSandbox) -> None:
    ended = await run_until_late(lambda seconds: attack(hiding(case), timeout=seconds), b"hidden", 1)
    await assert_ended(ended, jail, case)


@pytest.fixture(scope="module")
def local() -> Iterator[Sandbox]:
    """The provider that isolates nothing; of what a command starts it ends all, too."""
    sandbox = blocking(create_subprocess(SMALL), 60)
    yield sandbox
    blocking(sandbox.close(), 60)


@pytest.mark.parametrize("case", ESCAPES, ids=ids(ESCAPES))
async def test_a_timeout_ends_without_a_container(case: Attack, local: Sandbox) -> None:
    command = ["python3", "-c", PRELUDE + hiding(case)]
    ended = await run_until_late(lambda seconds: local.exec(command, timeout=seconds), b"hidden", 1)
    await assert_ended(ended, local, case)
