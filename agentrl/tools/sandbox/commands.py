"""`agentrl sandbox build|list|reap|shell|bench` and `agentrl check sandbox=…`.

Each command is a thin layer over a library function of this package (`images`, `reaper`, `bench`), so that a
program can do the same.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from agentrl.errors import ConfigError
from agentrl.tools.sandbox.base import DEFAULT_IMAGE

if TYPE_CHECKING:
    from agentrl.tools.sandbox.spec import SandboxSpec

app = typer.Typer(help="Docker sandboxes: images, orphaned containers, an interactive shell.", no_args_is_help=True)
ImageOption = Annotated[str, typer.Option(help="The image of the sandbox.")]


def check_sandbox(name: str, options: dict[str, Any], out: Console) -> bool:
    """`agentrl check sandbox=NAME [sandbox.FIELD=VALUE …]`: the conformance suite, a line for each check.

    Args:
        name: a backend.
        options: fields of the specification, and for remote the server's `url`, `key_file` and `certificate`.
        out: where to print.
    """
    import asyncio

    from agentrl.tools.sandbox import conformance
    from agentrl.tools.sandbox.remote import backend as remote
    from agentrl.tools.sandbox.spec import SandboxSpec

    if name == "remote":
        remote.use(*(options.pop(field, None) for field in ("url", "key_file", "certificate")))
    verdicts = asyncio.run(conformance.check_sandbox(name or "docker", SandboxSpec(**options)))
    for verdict in verdicts:
        mark = "[green]✓[/]" if verdict.ok else "[red]✗[/]"
        detail = "" if verdict.ok else f": {verdict.detail}"
        out.print(f"{mark} {escape(verdict.requirement + detail)}", highlight=False)
    return all(verdict.ok for verdict in verdicts)


@app.command()
def build(
    folder: Annotated[Path | None, typer.Argument(help="A folder with a Dockerfile; none: the base images.")] = None,
    tag: Annotated[str, typer.Option(help="The image's name.")] = DEFAULT_IMAGE,
) -> None:
    """Build an image from a Dockerfile, or (without one) make the base images without any registry."""
    import asyncio

    from agentrl.tools.sandbox.docker import images
    from agentrl.tools.sandbox.runner import build as parts

    if folder is None:
        script = parts.assets() / "make-base.sh"
        raise typer.Exit(subprocess.run(["bash", str(script)]).returncode)
    asyncio.run(images.build(folder, tag, typer.echo))


@app.command("list")
def list_() -> None:
    """Show every sandbox container, its owner, and whether the owner is alive."""
    import asyncio

    from agentrl.tools.sandbox.docker import reaper

    words = {True: "alive", False: "dead", None: "unknown here"}
    found = asyncio.run(reaper.find())
    for one in found:
        beat = "" if one.heartbeat_age is None else f"  heartbeat {one.heartbeat_age:.0f} s ago"
        line = (
            f"{one.id[:12]}  {one.state:8} {one.age:7.0f} s  {one.image}  owner {one.owner} ({words[one.owner_alive]})"
        )
        typer.echo(line + beat)
    typer.echo(f"{len(found)} sandboxes")


@app.command()
def reap(dry_run: Annotated[bool, typer.Option(help="Only say what would be removed.")] = False) -> None:
    """Remove the containers of owners that are dead, and no others."""
    import asyncio

    from agentrl.tools.sandbox.docker import reaper

    gone = asyncio.run(reaper.reap(dry_run=dry_run))
    for one in gone:
        typer.echo(f"{one.id[:12]}  {one.state}  of dead owner {one.owner}")
    typer.echo(f"{'would remove' if dry_run else 'removed'} {len(gone)} containers")


@app.command()
def shell(image: ImageOption = DEFAULT_IMAGE) -> None:
    """Open an interactive shell in a fresh sandbox, which is removed at the end."""
    import asyncio

    from agentrl.tools.sandbox.spec import SandboxSpec

    docker = shutil.which("docker")
    if not docker:
        raise ConfigError("an interactive shell needs the `docker` command, which is not there")
    asyncio.run(_shell(docker, SandboxSpec(image=image)))


async def _shell(docker: str, spec: SandboxSpec) -> None:
    import asyncio

    from agentrl.tools.sandbox.docker.backend import create_docker
    from agentrl.tools.sandbox.runner.transport import default_daemon

    sandbox = await create_docker(spec)
    try:
        line = f"exec {spec.shell[0]} 2>/dev/null || exec sh"
        command = [docker, "exec", "-it", "-w", spec.workdir, sandbox.id, "sh", "-c", line]
        env = {**os.environ, "DOCKER_HOST": spec.daemon or default_daemon()}
        await asyncio.to_thread(subprocess.run, command, env=env)
    finally:
        await sandbox.close()


@app.command()
def bench(
    image: ImageOption = DEFAULT_IMAGE,
    rounds: Annotated[int, typer.Option(help="Commands to time.", min=1, max=10_000)] = 200,
) -> None:
    """Time starting, running and ending sandboxes, beside plain docker-py doing the same."""
    import asyncio

    from agentrl.tools.sandbox import bench as timing
    from agentrl.tools.sandbox.spec import SandboxSpec

    for line in asyncio.run(timing.compare(SandboxSpec(image=image), rounds)):
        typer.echo(line)
