"""The commands about models: `agentrl models list|get|merge|push|check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from agentrl.common.terminal import err, out

app = typer.Typer(help="Models that a run can start from.", no_args_is_help=True)


@app.command("list")
def models_list() -> None:
    """List the models that are known by name, and whether they are in the cache."""
    from agentrl.models import KNOWN, cache_folder

    table = Table("name", "hub", "in the cache")
    table.add_row("tiny", "built on the spot", "")
    for name, model in sorted(KNOWN.items()):
        table.add_row(name, model.hub, "yes" if (cache_folder() / name).is_dir() else "no")
    out.print(table)


@app.command("get")
def models_get(name: str) -> None:
    """Fetch a model into the cache and print its folder."""
    from agentrl.models import get

    with err.status(f"fetching {name}") as status:
        path = get(name, progress=lambda text: status.update(f"{name}: {text}"))
    out.print(str(path), highlight=False, soft_wrap=True)


@app.command("merge")
def models_merge(base: str, adapter: Path, merged: Path) -> None:
    """Add an adapter in PEFT's format to its base model, and write the whole model into a new folder."""
    from agentrl.models import resolve
    from agentrl.models.adapter_merge import merge_adapter

    own = adapter / base  # an adapter's folder may hold its base
    merge_adapter(own if own.is_dir() else resolve(base), adapter, merged)
    out.print(str(merged), highlight=False, soft_wrap=True)


@app.command("push")
def models_push(
    run: Path,
    folder: Path,
    step: Annotated[int | None, typer.Option(help="Of which step; by default the best one's, or the newest.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Put it in the place of a model that is there.")] = False,
) -> None:
    """Write a run's model, with a card that says where it comes from, into a folder such as a clone from a hub.

    `hf upload OWNER/NAME FOLDER`, or git, then publishes the folder.
    """
    from agentrl.train.record.push import push

    taken = push(run, folder, step, replace=replace)
    out.print(f"{taken.name} of {run} is in {folder}, with its card in README.md", highlight=False, soft_wrap=True)


@app.command("check")
def models_check(
    path: str,
    trainer: Annotated[str | None, typer.Option(help="Try this trainer; it has to take it: torch, megatron.")] = None,
    engine: Annotated[str | None, typer.Option(help="Try this engine; it has to take it: local.")] = None,
    family: Annotated[str | None, typer.Option(help="A model family's name or import path, for Megatron.")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let Python code in the folder run, with all rights of yours.")
    ] = False,
) -> None:
    """Prove a model's architecture: trainer=torch, engine=local, and its family on Megatron where that is installed.

    Ends with 1 where numbers are wrong, where a trainer or engine that is named refuses the model, or where all do.
    """
    from agentrl.common import custom_code
    from agentrl.models import resolve
    from agentrl.train.trainers.report import report

    folder = Path(path) if Path(path).is_dir() else resolve(path)
    if trust_remote_code:
        custom_code.allow(folder)
    if not report(folder, out, trainer, engine, family):
        raise typer.Exit(1)
