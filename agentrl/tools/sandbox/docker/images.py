"""Images: building them, with progress line by line, and looking them up.

Nothing here pulls one: a missing image is a configuration error, reported before the run begins, not after minutes of
waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, InvalidInput
from agentrl.tools.sandbox.base import DaemonError
from agentrl.tools.sandbox.docker.daemon import ImageMissing, connect
from agentrl.tools.sandbox.runner.loop import run_on_loop

Progress = Callable[[str], None]
BUILD_TIMEOUT = 3600.0


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
