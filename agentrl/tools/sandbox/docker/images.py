"""Images: building them, with progress line by line, and looking them up.

Nothing here pulls one: a missing image is a configuration error, reported before the run begins, not after minutes of
waiting.
"""

from __future__ import annotations

import io
import posixpath
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, InvalidInput
from agentrl.tools.sandbox.base import DaemonError
from agentrl.tools.sandbox.docker.daemon import ImageMissing, connect
from agentrl.tools.sandbox.docker.owner import owner
from agentrl.tools.sandbox.runner.loop import run_on_loop

Progress = Callable[[str], None]
BUILD_TIMEOUT = 3600.0
TEMPORARY = ("/tmp", "/var/tmp", "/run")
SKELETON = (".bash_logout", ".bashrc", ".profile")
"""The files of a home that nobody has used."""
FIRST_BYTES = 1 << 16
"""Bytes of a folder's archive that show whether it has files."""


@run_on_loop
async def image_id(image: str, address: str | None = None) -> str | None:
    """Return the id of the daemon's image of that name; None where it has none."""
    daemon = await connect(address)
    try:
        return str((await daemon.call(daemon.api.inspect_image, image))["Id"])
    except ImageMissing:
        return None


async def require(image: str, address: str | None = None) -> None:
    """Check that the daemon has the image; ConfigError where it is missing; the message says how to get it."""
    if await image_id(image, address) is None:
        how = "sandboxes/make-base.sh makes it" if image.startswith("agentrl/") else f"`docker pull {image}` fetches it"
        raise ConfigError(f"the Docker daemon has no image {image!r}: {how}")


@run_on_loop
async def find_hidden(image: str, trees: Sequence[str], address: str | None = None) -> list[str]:
    """Return those of a sandbox's writable trees in which the image has files, which no command there sees.

    Folders for temporary files are left out. A container is made for it, and not started.
    """
    daemon = await connect(address)
    return await daemon.call(_find_hidden, daemon.api, image, [tree for tree in trees if tree not in TEMPORARY])


def _find_hidden(api: Any, image: str, trees: Sequence[str]) -> list[str]:
    if not trees:
        return []
    container = api.create_container(image, ["true"], labels=owner().labels(image))["Id"]
    try:
        return [tree for tree in trees if _has_files(api, container, tree)]
    finally:
        api.remove_container(container, v=True, force=True)


def _has_files(api: Any, container: str, folder: str) -> bool:
    from docker import errors

    try:
        stream, _ = api.get_archive(container, folder, chunk_size=FIRST_BYTES)
    except errors.NotFound:
        return False
    data = b""
    for chunk in stream:
        data += chunk
        if len(data) >= FIRST_BYTES:
            break
    stream.close()
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            return any(not member.isdir() and posixpath.basename(member.name) not in SKELETON for member in tar)
    except tarfile.TarError:
        return True  # there is more than was read


@run_on_loop
async def build(folder: Path, tag: str, progress: Progress = lambda line: None, address: str | None = None) -> None:
    """Build a Dockerfile's image.

    Args:
        folder: the build's context, with a `Dockerfile`.
        tag: the image's name.
        progress: called with each line, from another thread.
        address: the daemon's; None is the usual one.

    Raises:
        InvalidInput: there is no Dockerfile.
        DaemonError: a step failed; the message ends with the step's last lines.
    """
    if not (folder / "Dockerfile").is_file():
        raise InvalidInput(f"{folder} has no Dockerfile")
    daemon = await connect(address)
    await daemon.call(_follow_build, daemon.api, folder, tag, progress, timeout=BUILD_TIMEOUT)


def _follow_build(api: Any, folder: Path, tag: str, progress: Progress) -> None:
    events = api.build(path=str(folder), tag=tag, rm=True, forcerm=True, decode=True, pull=False)
    follow(events, progress, f"building {tag}")


def follow(events: Any, progress: Progress, what: str) -> None:
    """Report a daemon's progress line by line; an error among it is raised as a DaemonError."""
    last: list[str] = []
    for event in events:
        line = event.get("stream") or " ".join(
            str(event[key]) for key in ("id", "status", "progress") if event.get(key)
        )
        if line.strip():
            last = [*last[-4:], line.strip()]
            progress(line.rstrip())
        if "error" in event:
            raise DaemonError(f"{what} failed: {event['error']} (after: {' | '.join(last)})")
