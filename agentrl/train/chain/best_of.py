"""Stages that play sessions and keep the best: `reject: {n: 8}` in a stage, as `agentrl reject` does.

Such a stage's folder is an evaluation's, with the file of conversations in it, which `data: stage:NAME` reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.config import EvalConfig, RunConfig
from agentrl.errors import ConfigError, unknown_name
from agentrl.overrides import Tree, validate
from agentrl.train.driver import setup
from agentrl.train.evaluation.evaluate import list_ignored, refuse_ignored
from agentrl.train.evaluation.rejection import RejectConfig, split_settings
from agentrl.train.record.chain import BEST

REJECT = "reject"
"""The section of a stage that makes it one of these."""


def is_best_of(own: Mapping[str, Any]) -> bool:
    """Return whether a stage's own settings are those of such a stage."""
    return REJECT in own


def list_unused(tree: Tree) -> list[str]:
    """The settings of training, by their dotted names, which such a stage takes from no common ones."""
    return [*list_ignored({key: value for key, value in tree.items() if key != REJECT})]


def read_settings(tree: Tree, folder: Path) -> tuple[RunConfig, RejectConfig]:
    """The evaluation that such a stage is, and what it keeps."""
    given = tree[REJECT]
    given = {} if given is None else given
    names = [name for name in RejectConfig.model_fields if name != "out"]
    if not isinstance(given, Mapping):
        raise ConfigError(f"{REJECT}={given!r}: it is a mapping with {', '.join(names)}, such as {REJECT}: {{n: 8}}")
    if "out" in given:
        raise ConfigError(f"{REJECT}.out: a stage's file is {BEST} in its folder, and data=stage:NAME reads it")
    if unknown := next((name for name in given if name not in names), None):
        raise unknown_name("setting", f"{REJECT}.{unknown}", [f"{REJECT}.{name}" for name in names])
    if flat := next((name for name in RejectConfig.model_fields if name in tree), None):
        raise ConfigError(f"{flat} is {REJECT}.{flat} in a stage")
    if tree.get("data") is not None:
        raise ConfigError(f"data={tree['data']}: a stage with {REJECT} plays an environment: env=NAME")
    rest = {key: value for key, value in tree.items() if key != REJECT}
    refuse_ignored(rest)
    own = validate({**given, "out": str(folder / BEST)}, RejectConfig)
    settings, own = split_settings({**rest, **own.model_dump()})
    return setup.complete({**settings, "run_dir": str(folder)}), own


def describe_stage(own: RejectConfig, measured: EvalConfig, env: str, who: str) -> Iterator[str]:
    """The lines of a dry run."""
    low = measured.solved_at if own.min_reward is None else own.min_reward
    yield f"plays {own.n} sessions of each of {measured.tasks} tasks of {env} by {who}"
    yield f"keeps at most {own.max_per_task} of a task, with a reward of at least {low:g}, in {own.out}"
