"""`agentrl swe generate`: a thin layer over `generate.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrl.envs.builtin.swe.generation.faults import FaultKind

app = typer.Typer(no_args_is_help=True)


@app.callback()
def swe() -> None:
    """Software tasks: make more of them."""  # a typer without a callback would drop its only command's name


@app.command()
def generate(
    package: Annotated[Path, typer.Argument(help="A project's folder, with tests in it.")],
    out: Annotated[Path, typer.Option(help="Where the tasks go, a folder each.")],
    count: Annotated[int, typer.Option(help="How many tasks, at the most.", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="Decides which faults are tried.")] = 0,
    kind: Annotated[
        list[FaultKind] | None, typer.Option(help="A kind of fault, may be repeated; by default all.")
    ] = None,
    image: Annotated[str | None, typer.Option(help="A sandbox image that has what the tests need.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for all of the package's tests.", min=1.0)] = 60.0,
) -> None:
    """Plant faults into a package, and make a task of each that its tests catch."""
    import asyncio

    from agentrl.envs.builtin.swe.generation.generate import Package, generate_into

    source = Package.read(package, image=image, timeout=timeout)
    tasks = asyncio.run(generate_into(source, out, count=count, seed=seed, kinds=kind or tuple(FaultKind)))
    for task in tasks:
        typer.echo(f"{task.id}  {task.difficulty}  {len(task.fail_to_pass)} tests catch it")
    typer.echo(f"{len(tasks)} task{'s' * (len(tasks) != 1)} in {out}")
