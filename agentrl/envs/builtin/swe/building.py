"""Images of tasks that bring a Dockerfile: named by what is in its folder, built where the daemon has none of a name.

A name that follows from the files is the same on every machine, a changed folder has another image, and a task's data
does not tell where its folder is.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from pathlib import Path

from agentrl.envs.sandboxes import NO_DAEMON
from agentrl.errors import ConfigError, InvalidInput, SandboxError
from agentrl.tools.sandbox.docker import images
from agentrl.tools.sandbox.runner.loop import on_loop
from agentrl.tools.threads import in_forked_child

PREFIX = "agentrl-tasks/"
DOCKERFILE = "Dockerfile"
_log = logging.getLogger(__name__)
_builds: dict[str, asyncio.Future[None]] = {}
"""By image; they belong to the sandboxes' event loop."""


@in_forked_child
def _forget_builds() -> None:
    _builds.clear()


def context_of(path: Path | str, task_id: str) -> Path:
    """The folder of a task's Dockerfile; `path` is a folder of tasks, or of this one."""
    folder = Path(path).expanduser()
    single = any((folder / name).is_file() for name in ("task.toml", "task.yaml"))
    own = folder if single else folder / task_id
    return own / "environment" if (own / "task.toml").is_file() else own


def image_of(context: Path, task_id: str) -> str:
    """The name of the image that a folder makes.

    Raises:
        InvalidInput: it has no Dockerfile.
    """
    if not (context / DOCKERFILE).is_file():
        raise InvalidInput(f"{context} has no {DOCKERFILE}: env.build=true needs one for each task")
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(path for path in context.rglob("*") if path.is_file()):
        content = path.read_bytes()
        executable = bool(path.stat().st_mode & 0o100)
        digest.update(f"{path.relative_to(context).as_posix()}\0{executable}\0{len(content)}\0".encode())
        digest.update(content)
    name = re.sub(r"[^a-z0-9]+", "-", task_id.lower()).strip("-") or "task"
    return f"{PREFIX}{name}:{digest.hexdigest()}"


async def ensure(context: Path, image: str) -> None:
    """Build an image where the daemon has none of that name; episodes that need the same one wait for one build.

    Raises:
        ConfigError: there is no daemon, or a command of the Dockerfile failed.
    """
    await on_loop(_ensure(context, image))


async def _ensure(context: Path, image: str) -> None:
    if image not in _builds:
        _builds[image] = asyncio.ensure_future(_build(context, image))
    building = _builds[image]
    await asyncio.wait([building])
    if building.cancelled() or building.exception() is not None:
        _builds.pop(image, None)
    building.result()


async def _build(context: Path, image: str) -> None:
    try:
        if await images.image_id(image):
            return
    except SandboxError:
        raise ConfigError(NO_DAEMON) from None
    _log.warning("building %s from %s, once", image, context / DOCKERFILE)
    try:
        await images.build(context, image)
    except SandboxError as error:
        raise ConfigError(
            f"the image of {context / DOCKERFILE} was not built: {error}; what it downloads needs the Docker daemon's "
            "network. Where there is none, build it elsewhere, load it here, and name it by env.image"
        ) from None
