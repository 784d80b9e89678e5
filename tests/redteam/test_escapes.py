"""A timeout ends all that a command started, however it hides."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.tools.sandbox import Outcome
from agentrl.tools.sandbox.docker import DockerSandbox
from tests.redteam.attack import Attack, ids
from tests.redteam.escapes import ESCAPES
from tests.tools.sandbox.attacks.conftest import Attack as Run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("case", ESCAPES, ids=ids(ESCAPES))
async def test_a_timeout_ends(case: Attack, attack: Run, jail: DockerSandbox) -> None:
    program = f"""
{case.payload}
if os.fork() == 0:
    hide()
    print("hidden", os.getpid(), flush=True)
    while True:
        open("/tmp/alive", "w").write(str(time.time())); time.sleep(0.02)
time.sleep(600)
"""
    result = await attack(program, timeout=1)
    assert result.outcome is Outcome.TIMEOUT
    assert b"hidden" in result.stdout
    last = await jail.read("/tmp/alive")
    await asyncio.sleep(0.2)
    assert await jail.read("/tmp/alive") == last, case.must_not
