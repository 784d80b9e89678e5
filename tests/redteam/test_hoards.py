"""One sandbox can't take from another what the kernel counts by user."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.tools.sandbox.docker.backend import DockerSandbox
from agentrl.tools.sandbox.runner.loop import blocking
from tests.redteam.attack import Attack, ids
from tests.redteam.hoards import HOARDS, NEIGHBOUR, PRELUDE
from tests.tools.sandbox.conftest import SMALL, Make

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two(make_shared: Make) -> tuple[DockerSandbox, DockerSandbox]:
    """The one that takes, and its neighbour."""
    return make_shared(SMALL), make_shared(SMALL)


@pytest.fixture(scope="module")
def alone(two: tuple[DockerSandbox, DockerSandbox]) -> str:
    """What the neighbour gets when it is alone."""
    return look(two[1])


def look(sandbox: DockerSandbox) -> str:
    seen = blocking(sandbox.exec(["python3", "-c", NEIGHBOUR]), 60)
    assert seen.ok, seen.text()
    return seen.stdout.decode()


@pytest.mark.parametrize("attack", HOARDS, ids=ids(HOARDS))
async def test_a_session_that_uses_every_resource_takes_none_from_another(
    attack: Attack, two: tuple[DockerSandbox, DockerSandbox], alone: str
) -> None:
    taker, neighbour = two
    process = await taker.connect(["python3", "-c", PRELUDE + attack.payload])
    try:
        for _ in range(2400):
            if b"\n" in process.output()[0] or not process.running:
                break
            await asyncio.sleep(0.05)
        word, count = process.output()[0].split()
        assert word == b"took", process.output()
        assert int(count) > 0
        assert await asyncio.to_thread(look, neighbour) == alone, attack.must_not
    finally:
        await process.stop()
        await taker.exec("rm -f /dev/mqueue/*")


def test_no_two_sandboxes_have_one_user(two: tuple[DockerSandbox, DockerSandbox]) -> None:
    users = {blocking(sandbox.inspect(), 20)["Config"]["User"] for sandbox in two}
    assert len(users) == 2
    assert not users & {"", "0", "0:0", "1000:1000"}
