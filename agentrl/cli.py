"""The command line: `agentrl train|eval|serve|view|top|sessions|diff|report|envs|plugins|check|plan|doctor` and more.

Settings are `key=value`. Mistakes of the user end with exit code 2 and one clear message, never with a traceback; our
own failures end with exit code 1. Everything heavy is imported inside the command that needs it, so `--help` is quick.
"""

from __future__ import annotations

import io
import os
import signal
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from agentrl import __version__
from agentrl.common.terminal import err, out, print_lines
from agentrl.common.untrusted import visible_text
from agentrl.common.versions import version_lines
from agentrl.completion import SETTINGS
from agentrl.envs.builtin.search_r1.commands import app as search_r1
from agentrl.envs.builtin.swe.commands import app as swe
from agentrl.envs.commands import app as environments
from agentrl.errors import AgentRLError, Blame, ConfigError, OutputClosed, missing_extra
from agentrl.retrieval.commands import app as retrieval
from agentrl.settings_help import SettingsCommand, settings_command
from agentrl.tools.sandbox.commands import app as sandbox
from agentrl.train.evaluation.suite.commands import app as suites
from agentrl.train.migration.commands import app as migration
from agentrl.train.plan.model_commands import app as models
from agentrl.train.record.commands import app as records
from agentrl.viewer.commands import app as looking

app = typer.Typer(
    name="agentrl",
    help="Reinforcement learning for language-model agents on multi-turn, tool-using tasks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(records)  # verify, replay
app.add_typer(suites)  # compare
app.add_typer(environments)  # envs, init, play, decontaminate
app.add_typer(looking)  # view, top, sessions, diff, report
for name, commands in {"models": models, "convert": migration, "sandbox": sandbox, "swe": swe}.items():
    app.add_typer(commands, name=name)
app.add_typer(retrieval, name="retrieval")
app.add_typer(search_r1, name="search-r1")

EXTRAS = {
    **dict.fromkeys(("torch", "transformers", "numpy", "tokenizers", "safetensors", "tensorboard"), "train"),
    **dict.fromkeys(("fastapi", "starlette", "uvicorn", "openai", "anthropic"), "gateway"),
    **dict.fromkeys(("bm25s", "faiss"), "retrieval"),
    "renderers": "renderers",
    "docker": "docker",
    "pyarrow": "parquet",
    "megatron": "megatron",
    "gymnasium": "gymnasium",
    "textarena": "textarena",
    "pettingzoo": "pettingzoo",
    "mcp": "mcp",
    "langchain_core": "langchain",
}
"""The extra that brings what a command may miss."""

PLUGINS = (
    "agentrl.rollout.engines:ENGINES",
    "agentrl.train.trainers:TRAINERS",
    "agentrl.train.algorithms:ALGORITHMS",
    "agentrl.train.algorithms.policy_losses:LOSSES",
    "agentrl.envs.rewards:REWARDS",
    "agentrl.tools.sources:SOURCES",
    "agentrl.tools.sandbox.registry:SANDBOXES",
    "agentrl.rollout.weights:TRANSPORTS",
    "agentrl.rollout.stream.samplers:SAMPLERS",
    "agentrl.rollout.episodes.fork_rules:FORK_RULES",
    "agentrl.rollout.stream.filters:FILTERS",
    "agentrl.train.trackers:TRACKERS",
    "agentrl.rollout.stream.filters:PRIORITIES",
    "agentrl.sessions.renderers:RENDERERS",
    "agentrl.train.trainers.megatron.models.family:FAMILIES",
)
"""The kinds of plug-ins that `agentrl plugins` lists, each by its `Registry`."""

Words = Annotated[list[str] | None, SETTINGS]
File = Annotated[Path | None, typer.Option("-c", "--config", help="A YAML file of settings; words on the line win.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print_lines([f"agentrl {__version__}", *version_lines()])
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, help="Print the version, and those that a report of a bug needs."
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


@app.command(cls=SettingsCommand)
def train(words: Words = None, config: File = None) -> None:
    """Train a policy: agentrl train env=calculator. Go on with a run: agentrl train resume=runs/NAME.

    Several runs in a row: agentrl train -c chain.yaml, with stages: in it (docs/chains.md).
    """
    from agentrl.overrides import merge, parse_words, read_yaml
    from agentrl.train.driver.setup import complete
    from agentrl.train.record.chain import describes_chain

    layers = read_yaml(config) if config else {}, parse_words(words or ())
    if describes_chain(merge(*layers)):
        from agentrl.train.chain.commands import train_stages

        return _end(train_stages(*layers))
    settings = complete(merge(*layers))  # a wrong word is answered before torch is loaded
    if settings.dry_run:
        from agentrl.train.plan.dry_run import describe_run

        return print_lines(describe_run(settings))
    if not (settings.resume or settings.rerun):  # whose folders have the model
        from agentrl.models.registry import refuse_unknown

        refuse_unknown(settings.model.name)
    from agentrl.train.driver.api import run_train

    result = run_train(settings, owns_process=True)
    what = "learning_curve.png, transcripts/, metrics.jsonl, checkpoints/"
    out.print(f"run folder: {result.path} ({what})", markup=False, soft_wrap=True)
    out.print(result.tokens, highlight=False, markup=False, soft_wrap=True)
    _end(result.worked)


@app.command()
def plan(words: Words = None, config: File = None) -> None:
    """Rank the layouts of a model on a cluster, or plan a run (-c): agentrl plan model=qwen3-8b nodes=4 gpus=8."""
    from agentrl.overrides import parse_words, read_yaml
    from agentrl.train.plan.report import plan_lines

    print_lines(plan_lines(parse_words(words or ()), read_yaml(config) if config else None))


@app.command()
def doctor(words: Words = None) -> None:
    """Try this machine, or those of a cluster: agentrl doctor, agentrl doctor cluster=ray cluster.address=auto."""
    from agentrl.overrides import parse_words, validate
    from agentrl.train.plan.doctor import DoctorConfig, examine

    report = examine(validate(parse_words(words or ()), DoctorConfig))
    print_lines(report.lines())
    if report.problems:
        raise typer.Exit(1)


@app.command("eval", cls=SettingsCommand)
def evaluate(words: Words = None, config: File = None) -> None:
    """Measure a policy without training it: agentrl eval env=NAME model=PATH; policy=expert, noop or an API's URL.

    Several tasks: agentrl eval suite=FILE.yaml model=PATH. Against a baseline: compare=RESULT.json, which ends with 3
    where the policy is worse (compare.alpha=0.05).
    """
    from agentrl.overrides import merge, parse_words, read_yaml
    from agentrl.train.driver.api import run_evaluate
    from agentrl.train.driver.setup import complete
    from agentrl.train.evaluation.evaluate import list_ignored, refuse_ignored
    from agentrl.train.evaluation.suite.commands import against_baseline, evaluate_suite
    from agentrl.train.evaluation.suite.results import take_baseline
    from agentrl.train.record.files import run_path

    given = read_yaml(config) if config else {}
    tree = merge(given, parse_words(words or ()))
    baseline = take_baseline(tree)
    if "suite" in tree:
        return evaluate_suite(tree, baseline)
    refuse_ignored(parse_words(words or ()))
    if unused := list_ignored(given):
        sections = ", ".join(dict.fromkeys(key.partition(".")[0] for key in unused))
        err.print(f"of {config} an evaluation takes no notice of some settings in: {sections}", soft_wrap=True)
    settings = complete(tree, parse_words(words or ()))
    if baseline is not None and settings.run_dir is None:
        settings = settings.model_copy(update={"run_dir": str(run_path(settings.env.name, None, prefix="eval-"))})
    result = run_evaluate(settings, owns_process=True)
    out.print(str(result), highlight=False, markup=False, soft_wrap=True)
    _end(result.worked)
    against_baseline(Path(settings.run_dir or ""), baseline)


@app.command(cls=settings_command("agentrl.train.evaluation.rescore.rescoring:RescoreConfig"))
def rescore(
    run: Annotated[str, typer.Argument(help="The folder of a run or an evaluation.")], words: Words = None
) -> None:
    """Score stored sessions anew, without generating: agentrl rescore runs/NAME rewards.NAME=KIND.

    The run stays as it is; the result is a folder beside it, for agentrl compare and agentrl view.
    """
    from agentrl.config.unused import list_unused, refuse
    from agentrl.overrides import parse_words, validate
    from agentrl.train.driver.api import run_rescore
    from agentrl.train.evaluation.rescore.rescoring import RescoreConfig, describe_rescore

    tree = parse_words(words or ())
    config = validate(tree, RescoreConfig)
    refuse(list_unused(config, tree))
    rescored = run_rescore(Path(run), config, owns_process=True)
    print_lines(describe_rescore(Path(run), *rescored))


@app.command(cls=settings_command("agentrl.train.evaluation.rejection:RejectConfig"))
def reject(words: Words = None, config: File = None) -> None:
    """Write the best of n sessions of each task: agentrl reject env=NAME model=PATH out=best.jsonl n=8.

    agentrl train algo=sft data=best.jsonl learns from them. All other settings are those of agentrl eval; sessions are
    kept in runs/reject-…, or in a folder of run_dir.
    """
    from agentrl.overrides import merge_settings
    from agentrl.train.driver.api import run_reject
    from agentrl.train.driver.setup import complete
    from agentrl.train.evaluation.evaluate import refuse_ignored
    from agentrl.train.evaluation.rejection import split_settings

    tree, own = split_settings(merge_settings(words or (), config))
    refuse_ignored(tree)
    print_lines(run_reject(complete(tree), own, owns_process=True).lines())


def _end(worked: bool) -> None:
    """End with exit code 1 where nothing worked at all."""
    if not worked:
        err.print(
            "[red]error:[/] nothing worked: every session failed, had no turn, or was not trained (see the warnings)",
            soft_wrap=True,
        )
        raise typer.Exit(1)


@app.command(cls=settings_command("agentrl.rollout.workers.serve_process:ServeConfig"))
def serve(words: Words = None, config: File = None) -> None:
    """Serve a model behind OpenAI's and Anthropic's APIs, each session a tree: agentrl serve model=PATH port=8000."""
    from agentrl.overrides import merge_settings
    from agentrl.rollout.workers.serve_workers import serve_command

    serve_command(merge_settings(words or (), config), out)


@app.command("serve-training", cls=settings_command("agentrl.train.server.config:ServeTrainingConfig"))
def serve_training(words: Words = None, config: File = None) -> None:
    """Train adapters for clients of the tinker SDK: agentrl serve-training model=PATH port=8600, or resume=FOLDER."""
    from agentrl.overrides import merge_settings
    from agentrl.train.server.commands import serve_training as serve_them

    serve_them(merge_settings(words or (), config))


@sandbox.command("serve", cls=settings_command("agentrl.envs.sandbox_server:SandboxServerConfig"))
def serve_sandboxes(words: Words = None, config: File = None) -> None:
    """Serve sandboxes to processes on other machines (sandbox=remote): agentrl sandbox serve port=8700 key_file=KEY."""
    from agentrl.envs.sandbox_server import serve_sandboxes as serve_them
    from agentrl.overrides import merge_settings

    serve_them(merge_settings(words or (), config), out)


@app.command()
def plugins() -> None:
    """List the plug-ins: what each kind's setting can name, where it is, and the settings of its own."""
    from agentrl.common.imports import load

    table = Table(Column("setting", no_wrap=True), "from", "settings of its own")
    for kind in PLUGINS:
        registry = load(kind, kind)
        for info in registry.list():
            fields = () if info.error else registry.settings(info.name).model_fields
            own = ", ".join(name for name in fields if name not in registry.base.model_fields)
            table.add_row(
                f"{registry.setting}={info.name}", info.source, f"[red]{escape(info.error)}[/]" if info.error else own
            )
    out.print(table)
    out.print("Environments: `agentrl envs`. Each setting also takes package.module:NAME and path/to/file.py:NAME.")


@app.command()
def check(words: Words = None) -> None:
    """Prove that something keeps its contract: agentrl check env=NAME, renderer=MODEL, or sandbox=docker."""
    from agentrl.checks import CHECKS
    from agentrl.errors import unknown_name
    from agentrl.overrides import parse_words

    tree = parse_words(words or ())
    kinds = [key for key in tree if key in CHECKS]
    if len(tree) == 1 and not kinds:
        raise unknown_name("thing to check", next(iter(tree)), CHECKS)
    if len(kinds) != 1:
        raise ConfigError(f"say what to check, one of: {', '.join(f'{kind}=…' for kind in CHECKS)}")
    subject = tree.pop(kinds[0])
    if tree and kinds != ["env"]:
        raise ConfigError(f"check {kinds[0]}=… takes no {', '.join(tree)}")
    options = dict(subject) if isinstance(subject, dict) else {"name": subject}
    if not CHECKS[kinds[0]](str(options.pop("name", "")), options, out, **tree):
        raise typer.Exit(1)


@app.command()
def bench(name: Annotated[str | None, typer.Argument(help="A benchmark's name; none lists them.")] = None) -> None:
    """Run one of the checkout's benchmarks: ratios against a baseline measured in the same run."""
    from agentrl.checks import run_benchmark

    run_benchmark(name, out)


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line; with the process's own words where none are given.

    Where nothing reads the output any more, it ends silently, with the status of a tool that SIGPIPE ends.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal whose encoding lacks a character must not end a run
    written_to = _find_pipe()
    try:
        _run_command(words)
    except OutputClosed:
        sys.exit(128 + signal.SIGPIPE)
    except SystemExit as ended:
        if ended.code == 1 and written_to is not None and _find_pipe() != written_to:  # by the console of typer's help
            sys.exit(128 + signal.SIGPIPE)
        raise


def _find_pipe() -> tuple[int, int] | None:
    """The identity of the pipe that standard output is; rich redirects it elsewhere where nothing reads it."""
    try:
        found = os.fstat(1)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode) else None


def _run_command(words: Sequence[str] | None) -> None:
    try:
        app(words, prog_name=words and "agentrl")
    except OutputClosed:
        raise
    except AgentRLError as error:
        from agentrl.config.secrets import scrub  # which loads all settings

        err.print(f"[red]error:[/] {escape(visible_text(scrub(str(error))))}", highlight=False, soft_wrap=True)
        for note in getattr(error, "__notes__", ()):
            err.print(scrub(note), highlight=False, markup=False, soft_wrap=True)
        sys.exit(2 if error.blame is Blame.USER else 1)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        err.print(f"[red]error:[/] {escape(str(missing_extra(str(error.name), extra)))}", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
