"""Images from one host's Docker daemon to another's; both are this machine's, which forgets the image in between."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from agentrl.cluster import LocalCluster, Role, Worker
from agentrl.errors import InvalidInput
from agentrl.tools.sandbox.base import DaemonError
from agentrl.tools.sandbox.docker import daemon
from agentrl.tools.sandbox.docker.delivery import ImageHost, save_image
from tests.tools.sandbox.conftest import TINY

LONG = 120.0


@pytest.fixture
def image(docker: None) -> Iterator[str]:
    """A name of the tiny image that only this test uses."""
    api, tag = daemon.daemon().api, secrets.token_hex(4)
    api.tag(TINY.image, "agentrl/delivered", tag)
    yield f"agentrl/delivered:{tag}"
    if api.images(f"agentrl/delivered:{tag}"):
        api.remove_image(f"agentrl/delivered:{tag}")


@pytest.fixture
def hosts(docker: None) -> Iterator[list[Worker]]:
    cluster = LocalCluster()
    workers = [
        cluster.spawn(Role("probe", "agentrl.tools.sandbox.docker.delivery:ImageHost", threads=1)) for _ in range(2)
    ]
    for worker in workers:
        worker.wait_ready(LONG)
    yield workers
    cluster.close()


@pytest.mark.slow
async def test_an_image_is_there_again_once_all_of_its_pieces_have_arrived(image: str) -> None:
    host = ImageHost()
    before = await host.image_id(image)
    assert before is not None
    host.take_piece(image, 0, b"of one that broke off")
    offset = 0
    for piece in save_image(image):
        host.take_piece(image, offset, piece)
        offset += len(piece)
    daemon.daemon().api.remove_image(image)
    assert await host.image_id(image) is None
    await host.load_image(image)
    assert await host.image_id(image) == before
    with pytest.raises(InvalidInput, match="no piece of the image"):
        await host.load_image(image)


@pytest.mark.slow
async def test_a_host_sends_an_image_to_another_and_refuses_one_that_it_does_not_have(
    image: str, hosts: list[Worker]
) -> None:
    here, there = hosts
    sent = await here.call("send_image", image, there.address, LONG, timeout=LONG)
    assert sent > 1 << 20
    with pytest.raises(DaemonError, match="does not exist"):
        await here.call("send_image", "agentrl/none:such", there.address, LONG, timeout=LONG)
    there.run("take_piece", "broken", 0, b"no archive", timeout=LONG)
    with pytest.raises(DaemonError, match="loading broken failed"):
        await there.call("load_image", "broken", timeout=LONG)
