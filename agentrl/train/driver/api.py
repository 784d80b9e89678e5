"""`train` and `evaluate`: what the command line calls, and what a script calls instead.

agentrl.train("calculator", steps=20)
agentrl.train(Shop, model="smollm2-135m", algo={"lr": 1e-6}, rollout={"group_size": 4})
agentrl.evaluate("gsm8k", model="runs/gsm8k/checkpoints/step-000100", env={"path": "test.jsonl"})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentrl.common import cores, garbage
from agentrl.common.imports import refuse_within_import
from agentrl.config import RunConfig
from agentrl.envs.base import Env
from agentrl.envs.registry import register
from agentrl.errors import ConfigError, require_extra
from agentrl.overrides import Tree, merge, spread
from agentrl.train.display.console import Display
from agentrl.train.driver import interrupt
from agentrl.train.record.chain import describes_chain

if TYPE_CHECKING:
    from pathlib import Path

    from agentrl.rollout.stream.batch_metrics import Evaluation
    from agentrl.train.chain.planning import Chain
    from agentrl.train.chain.running import ChainResult
    from agentrl.train.driver.result import TrainResult
    from agentrl.train.evaluation.rejection import RejectConfig, Rejection
    from agentrl.train.evaluation.rescore.changes import ScoreChanges
    from agentrl.train.evaluation.rescore.rescoring import RescoreConfig
    from agentrl.train.evaluation.suite.parts import Suite
    from agentrl.train.evaluation.suite.results import Results


def train(env: str | type[Env] | None = None, /, *, display: Display | None = None, **settings: Any) -> TrainResult:
    """Train a policy, or resume a run (`resume="runs/NAME"`).

    With `stages={"NAME": {…}, …}` a chain of runs, which returns a `ChainResult`; see docs/chains.md.

    Args:
        env: a registered name, path/to/file.py:Class, or an environment's class; its settings may stand in `env={…}`.
        display: where progress is shown; the terminal by default.
        **settings: any setting of `RunConfig`; sections are mappings, and dotted keys work as well.

    Raises:
        ConfigError: a setting is unknown, has the wrong type, or contradicts another.
    """
    from agentrl.train.driver.setup import complete

    refuse_within_import("agentrl.train")
    tree = read_settings(env, settings)
    if describes_chain(tree):
        from agentrl.train.chain.planning import plan_chain

        return run_chain(plan_chain(tree), display)
    return run_train(complete(tree), display)


def evaluate(env: str | type[Env] | None = None, /, *, display: Display | None = None, **settings: Any) -> Evaluation:
    """Measure a policy without training it; `policy="expert"` and `policy="noop"` need no model.

    What it leaves is in `runs/eval-<env>-<time>/`, or in `run_dir`; see `agentrl.train.evaluation.evaluate`.

    Args:
        env: a registered name, path/to/file.py:Class, or an environment's class; its settings may stand in `env={…}`.
        display: where progress is shown; the terminal by default.
        **settings: any setting of `RunConfig`.

    Raises:
        ConfigError: a setting is unknown, has the wrong type, is for training only, or contradicts another.
    """
    from agentrl.train.evaluation.evaluate import refuse_ignored

    refuse_within_import("agentrl.evaluate")
    refuse_ignored(spread(settings))
    return run_evaluate(configure(env, settings), display)


@cores.one_each()
def run_train(config: RunConfig, display: Display | None = None, *, owns_process: bool = False) -> TrainResult:
    """Train as a finished configuration says; `owns_process`: see `interrupt.run`."""
    from agentrl.rollout.engines import ENGINES
    from agentrl.train.plan.preflight import check_training

    if config.dry_run:
        raise ConfigError("dry_run=true is for the command line; scripts call agentrl.train.plan.dry_run.describe_run")
    algorithms = check_training(config)  # before anything heavy is imported, and before anything is written
    if config.data is None:
        ENGINES.find(config.engine.name).begin(config.engine)
    with require_extra("train"), garbage.collect_nothing_while_loading():
        from agentrl.train.driver.launch import train_run
    display = display or Display()
    work, leave = train_run(config, display, algorithms), lambda: display.request_stop()
    return interrupt.run(work, display.print_resume_hint, owns_process=owns_process, leave=leave)


@cores.one_each()
def run_chain(plan: Chain, display: Display | None = None, *, owns_process: bool = False) -> ChainResult:
    """Train a chain's stages as they are planned; `owns_process`: see `interrupt.run`."""
    if plan.dry_run:
        raise ConfigError("dry_run=true is for the command line; scripts call agentrl.train.chain.planning.plan_chain")
    with require_extra("train"):
        from agentrl.train.chain.running import train_chain
    display = display or Display()
    work, leave = train_chain(plan, display), lambda: display.request_stop()
    return interrupt.run(work, display.print_resume_hint, owns_process=owns_process, leave=leave)


@cores.one_each()
def run_evaluate(config: RunConfig, display: Display | None = None, *, owns_process: bool = False) -> Evaluation:
    """Evaluate as a finished configuration says; `owns_process`: see `interrupt.run`."""
    from agentrl.train.evaluation.evaluate import evaluate_run
    from agentrl.train.plan.preflight import check_evaluation

    check_evaluation(config)
    display = display or Display()
    return interrupt.run(evaluate_run(config, display), display.print_resume_hint, owns_process=owns_process)


@cores.one_each()
def run_evaluate_suite(suite: Suite, display: Display | None = None, *, owns_process: bool = False) -> Results:
    """Measure a policy on a suite (`evaluation.suite.parts.read_suite`); `owns_process`: see `interrupt.run`."""
    from agentrl.train.evaluation.suite.play import run_suite

    display = display or Display()
    return interrupt.run(run_suite(suite, display), display.print_resume_hint, owns_process=owns_process)


@cores.one_each()
def run_reject(
    config: RunConfig, own: RejectConfig, display: Display | None = None, *, owns_process: bool = False
) -> Rejection:
    """Write the best sessions of each task (`evaluation.rejection.reject`); `owns_process`: see `interrupt.run`."""
    from agentrl.train.evaluation.rejection import reject
    from agentrl.train.plan.preflight import check_evaluation

    check_evaluation(config)
    display = display or Display()
    return interrupt.run(reject(config, own, display), display.print_resume_hint, owns_process=owns_process)


@cores.one_each()
def run_rescore(
    run: Path, config: RescoreConfig, display: Display | None = None, *, owns_process: bool = False
) -> tuple[Path, Evaluation, ScoreChanges]:
    """Score a run's sessions anew (`evaluation.rescore.rescoring.rescore`); `owns_process`: see `interrupt.run`."""
    from agentrl.train.evaluation.rescore.rescoring import rescore

    display = display or Display()
    return interrupt.run(rescore(run, config, display), display.print_resume_hint, owns_process=owns_process)


def configure(env: str | type[Env] | None, settings: Mapping[str, Any]) -> RunConfig:
    """A run's configuration from Python arguments, merged over the environment's recipe.

    Raises:
        ConfigError: a setting is unknown, has the wrong type, is for training only, or contradicts another.
    """
    from agentrl.train.driver.setup import complete

    return complete(read_settings(env, settings))


def read_settings(env: str | type[Env] | None, settings: Mapping[str, Any]) -> Tree:
    """The settings that Python arguments give, not completed yet.

    Raises:
        ConfigError: the environment is given twice.
    """
    tree = spread(settings)
    given = tree.pop("env", None)
    if not isinstance(given, Mapping):
        if env is not None and given is not None:
            raise ConfigError(f"env is given twice, as {env!r} and as env={given!r}")
        env, given = given if env is None else env, {}
    if isinstance(env, type):
        register(env.__name__, env)
        env = env.__name__
    if env is not None and not isinstance(env, str):
        raise ConfigError(
            f"env is {env!r}: allowed are a name, path/to/file.py:CLASS and a class; a function that makes instances "
            "has a name after agentrl.register(NAME, function)"
        )
    if env is not None:
        given = merge({"name": env}, given)
    return tree | {"env": given} if given else tree
