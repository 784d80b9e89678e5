"""An image from one host's Docker daemon to another's, without a registry: a role on each of the hosts.

    here, there = (cluster.spawn(Role("probe", "agentrl.tools.sandbox.docker.delivery:ImageHost")) for _ in range(2))
    await here.call("send_image", "agentrl/base:latest", there.address, 600.0, timeout=600.0)

The sender's daemon writes the image as `docker save` does, the pieces go over the connection that workers call each
other by, and the receiver's daemon loads it once all of it is there.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

from agentrl.cluster.wire.connection import Address, Connection, connect
from agentrl.errors import InvalidInput
from agentrl.tools.sandbox.docker import daemon
from agentrl.tools.sandbox.docker.daemon import translate_errors
from agentrl.tools.sandbox.docker.images import BUILD_TIMEOUT, follow, image_id
from agentrl.tools.sandbox.runner.loop import run_on_loop

PIECE = 4 << 20
"""Bytes of an image that are sent at once."""


class ImageHost:
    """A host's images, as a role of the cluster."""

    def __init__(self) -> None:
        self._arriving: dict[str, BinaryIO] = {}

    async def image_id(self, image: str) -> str | None:
        """The id of what the host's daemon has under this name; None where it has nothing.

        Raises:
            DaemonError: it does not answer.
        """
        return await image_id(image)

    async def send_image(self, image: str, address: Address, timeout: float) -> int:
        """Have another host load an image of this one; returns its bytes.

        Raises:
            DaemonError: this host does not have it, or a daemon failed.
            InfraError: the other host failed.
        """
        other = await asyncio.to_thread(connect, address)
        try:
            return await asyncio.to_thread(self._send, image, other, timeout)
        finally:
            other.close()

    def _send(self, image: str, other: Connection, timeout: float) -> int:
        sent = 0
        for piece in save_image(image):
            other.run("take_piece", image, sent, piece, timeout=timeout)
            sent += len(piece)
        other.run("load_image", image, timeout=timeout)
        return sent

    def take_piece(self, image: str, offset: int, piece: bytes) -> None:
        """A further piece of an image; the one at offset 0 begins it, also where an earlier one broke off."""
        if not offset:
            self._arriving[image] = tempfile.TemporaryFile(prefix="agentrl-image-")  # noqa: SIM115 - until it is loaded
        self._arriving[image].write(piece)

    async def load_image(self, image: str) -> None:
        """Load the image whose pieces have arrived.

        Raises:
            InvalidInput: none have.
            DaemonError: the daemon refused it.
        """
        if image not in self._arriving:
            raise InvalidInput(f"no piece of the image {image!r} has arrived")

        with self._arriving.pop(image) as file:
            file.seek(0)
            await _load(file, image)


def save_image(image: str) -> Iterator[bytes]:
    """An image of this host as its daemon saves it, in pieces; blocks.

    Raises:
        DaemonError: this host does not have it, or the daemon failed.
    """
    here = daemon.daemon()
    pieces = iter(translate_errors(here.api.get_image, image, PIECE))
    while piece := translate_errors(next, pieces, b""):
        yield piece


@run_on_loop
async def _load(file: BinaryIO, image: str) -> None:
    def load() -> None:
        follow(here.api.load_image(file), lambda line: None, f"loading {image}")

    here = await daemon.connect()
    await here.call(load, timeout=BUILD_TIMEOUT)
