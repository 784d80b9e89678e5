"""A session leaves nothing to the next: its sandbox is as it was when it was new, or it is closed."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.errors import SandboxError
from agentrl.tools.sandbox.docker.backend import DockerSandbox
from tests.redteam.attack import Attack, ids
from tests.redteam.poisonings import BACKGROUND, LOOK, POISONINGS, PRELUDE
from tests.tools.sandbox.conftest import SMALL, Make

pytestmark = pytest.mark.slow


class Reused:
    """A sandbox that sessions use one after the other; a new one where the last could not be reset."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._sandbox: DockerSandbox | None = None
        self.new = ""

    async def acquire(self) -> DockerSandbox:
        """The reused sandbox, or a new one."""
        if self._sandbox is None:
            self._sandbox = await asyncio.to_thread(self._make, SMALL)
            seen = await self._look(self._sandbox)
            self.new = self.new or seen
            await self._sandbox.reset()
        return self._sandbox

    async def release(self) -> str | None:
        """Reset it: what the next session sees, or None where it could not be reset."""
        assert self._sandbox is not None
        try:
            await self._sandbox.reset()
        except SandboxError:
            self._sandbox = None
            return None
        return await self._look(self._sandbox)

    @staticmethod
    async def _look(sandbox: DockerSandbox) -> str:
        seen = await sandbox.exec(["python3", "-c", LOOK], timeout=60)
        assert seen.ok, seen.text()
        return seen.stdout.decode()


@pytest.fixture(scope="module")
def reused(make_shared: Make) -> Reused:
    """One for all attacks: what one leaves, the next would find."""
    return Reused(make_shared)


@pytest.mark.parametrize("attack", POISONINGS, ids=ids(POISONINGS))
async def test_a_reset_removes_what_an_attack_left(attack: Attack, reused: Reused) -> None:
    sandbox = await reused.acquire()
    done = await sandbox.exec(["python3", "-c", PRELUDE + attack.payload], timeout=30)
    assert done.ok, f"the attack did not run: {done.text()}"
    assert await reused.release() in (None, reused.new), attack.must_not


@pytest.mark.parametrize("attack", BACKGROUND, ids=ids(BACKGROUND))
async def test_a_reset_removes_what_a_running_attack_left(attack: Attack, reused: Reused) -> None:
    sandbox = await reused.acquire()
    running = await sandbox.start(["python3", "-c", PRELUDE + attack.payload])
    await asyncio.sleep(0.3)
    assert await reused.release() in (None, reused.new), attack.must_not
    assert not running.running


async def test_most_sandboxes_are_used_again(reused: Reused) -> None:
    """Closing every one would be safe, too, but cost a start for each episode."""
    sandbox = await reused.acquire()
    for _ in range(3):
        await sandbox.exec("mkdir -p a/b; echo x > a/b/c; ln -s a l; python3 -c 'import socket; socket.socket()'")
        assert await reused.release() == reused.new
