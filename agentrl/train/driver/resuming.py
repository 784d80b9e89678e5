"""A run's resumption: from which checkpoint, and with which settings.

Some settings are what a run is: with another environment, model or seed it would not be the same one, and what it
has learned so far would not be what its settings say. They are refused. All others may change between one
resumption and the next (the number of steps, the learning rate, engines, the trainer's layout): the run says so, and
its config.yaml has the new ones from then on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from agentrl.common import formats
from agentrl.common.scratch import remove
from agentrl.config import AlgoConfig, RunConfig
from agentrl.config.learners import OWN
from agentrl.errors import ConfigError
from agentrl.overrides import read_yaml, validate
from agentrl.train.record import kept_code, manifest
from agentrl.types import MAIN

FIXED = (
    *("env", "agent", "agents", "policies", "model", "lora", "seed", "warm_start", "algo.name", "algo.value_trunk"),
    *("algo.value_view", "algo.value_path", "trainer.name", "trainer.optimizer", "rollout.sampler.name", "run_dir"),
)
"""Settings, or whole sections, that a run keeps from its first step to its last.

Of a policy's own trainer, algorithm, engine and weights, what is kept is as of the main one's.
"""
ONCE = ("resume", "policy", "accept_changed_data")
"""Settings of a single resumption."""
STATE = "run.json"
"""The file of a checkpoint that has the state of stream and algorithm; see `train.record.state`."""
ASIDE = "damaged-"
"""Prefix of the name of a checkpoint that could not be resumed from."""


@dataclass(frozen=True)
class ResumedFrom:
    """The point that a resumed run goes on from: a whole checkpoint, and the settings as they were before."""

    checkpoint: Path
    saved: RunConfig


def read_settings(run: Path, asked: str = "") -> dict[str, Any]:
    """A run's config.yaml, the first that is read of a run: it is refused here where its format is not known.

    Args:
        run: its folder.
        asked: the setting that names it, for messages; none where it is an argument.

    Raises:
        ConfigError: there is no run, or its config.yaml is not YAML.
        NewerFormat: a later agentrl wrote it.
    """
    if not (run / "config.yaml").is_file():
        named = f"{asked}={str(run)!r}" if asked else str(run)
        above = next((folder for folder in run.parents if (folder / "config.yaml").is_file()), None)
        hint = f"; the run is {above}" if above else ""
        raise ConfigError(f"{named}: no run there (config.yaml is missing){hint}")
    formats.check_run(run)
    return read_yaml(run / "config.yaml")


def saved_settings(run: Path, asked: str = "resume") -> RunConfig:
    """The settings that a run was last begun or resumed with; see `read_settings`."""
    return validate(kept_code.usable(run, read_settings(run, asked)), RunConfig)


def changes(run: Path, saved: Mapping[str, Any], requested: Mapping[str, Any]) -> list[str]:
    """The settings that change, as text; both as they are shown (`public`).

    Raises:
        ConfigError: one of them can't; the message names them all.
    """
    old, new, changed = _list_changed(saved, requested)
    fixed = [name for name in changed if _is_fixed(name)]
    if fixed:
        wrong = ", ".join(f"{_word(name, new)} (the run has {_word(name, old)})" for name in fixed)
        raise ConfigError(
            f"resume={run}: {wrong}: a run keeps its {', '.join(FIXED)}; to train its model with other ones begin a "
            f"new run from a checkpoint, model={run}/checkpoints/step-…"
        )
    return [f"{_word(name, old)} -> {new.get(name)}" for name in changed]


def _is_fixed(name: str) -> bool:
    of_policy = re.fullmatch(rf"policies\.[^.]+\.((?:engine|fleet|{'|'.join(OWN)})\b.*)", name)
    name = of_policy[1] if of_policy else name
    return any(name == part or name.startswith(f"{part}.") for part in FIXED)


def changed_settings(saved: Mapping[str, Any], requested: Mapping[str, Any]) -> list[str]:
    """The settings that differ, as text; both as they are shown (`public`)."""
    old, new, changed = _list_changed(saved, requested)
    return [f"{_word(name, old)} -> {new.get(name)}" for name in changed]


def _list_changed(
    saved: Mapping[str, Any], requested: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Both configurations by dotted names, and the names of what differs."""
    old, new = flat(saved), flat(requested)
    return old, new, [name for name in {**old, **new} if name not in ONCE and old.get(name) != new.get(name)]


def rate_jumps(saved: RunConfig, requested: RunConfig, done: int) -> Iterator[str]:
    """Yield a sentence for each policy whose learning rate jumps in the next step, by other settings than `algo.lr`.

    A schedule other than constant is over a run's steps, so more of them raise the rate again. `done`: the steps behind
    the run.
    """
    asked = {name: (getattr(saved, name), getattr(requested, name)) for name in ("steps", "schedule")}
    for name, own in requested.learners.items():
        steps = saved.learning_steps(name), requested.learning_steps(name)
        jump = _rate_jump(saved.learners[name].algo, own.algo, steps, saved.learning_steps(name, done), asked)
        if jump:
            yield jump if name == MAIN else f"{name}: {jump}"


def _rate_jump(
    before: AlgoConfig, after: AlgoConfig, steps: tuple[int, int], done: int, asked: Mapping[str, tuple[Any, Any]]
) -> str:
    from agentrl.train.trainers.optimizer import learning_rate

    usual, rate = learning_rate(before, done, steps[0]), learning_rate(after, done, steps[1])
    if not done or before.lr != after.lr or usual == rate:
        return ""
    last = learning_rate(before, done - 1, steps[0])
    names = {
        **asked,
        "algo.schedule": (before.schedule, after.schedule),
        "algo.warmup_steps": (before.warmup_steps, after.warmup_steps),
    }
    causes = ", ".join(f"{name}={new} (was {old})" for name, (old, new) in names.items() if old != new)
    return (
        f"the learning rate jumps from {last:.3g} in step {done} to {rate:.3g} in step {done + 1}: {causes}, and "
        f"algo.schedule={after.schedule} is over the run's steps; algo.schedule=constant algo.lr={last:.3g} goes on "
        "without a jump"
    )


def newest_whole(run: Path, steps: int, done: int, say: Callable[[str], None]) -> Path | None:
    """The newest complete checkpoint; newer ones are renamed, and a line says why.

    Returns:
        None where the run had not come to its first one yet.

    Raises:
        ConfigError: none is whole though there were some, or the run has more steps behind it than there shall be.
    """
    wrong: dict[Path, str] = {}
    found = None
    for path in reversed(step_folders(run)):
        unfinished = None if (path / "trainer").exists() else "its trainer is missing, or was not written to the end"
        if (fault := unfinished or manifest.damage(path)) is None:
            found = path
            break
        wrong[path] = fault
    faults = "; ".join(f"{path.name}: {fault}" for path, fault in wrong.items())
    if found is None and (done or any(map(step_of, wrong))):
        missing = f"no checkpoint is whole ({faults})" if wrong else "its checkpoints are gone"
        raise ConfigError(
            f"resume={run}: {missing}, and metrics.jsonl has {done} steps: there is nothing to resume from. Another "
            "run_dir starts again with the same settings: agentrl train -c "
            f"{run}/config.yaml run_dir=…"
        )
    start = step_of(found) if found else 0
    if steps < start:
        raise ConfigError(f"steps={steps}: {run} has {start} steps behind it; use steps>={start}")
    for path in wrong:
        aside = path.with_name(ASIDE + path.name)
        remove(aside)
        path.rename(aside)
    if wrong:
        on = f"after step {start}" if found else "from the beginning"
        say(f"warning: {faults}. Renamed to checkpoints/{ASIDE}…; going on {on}")
    if start < done:
        say(f"steps {start + 1} to {done} come after the newest checkpoint")
    return found


def check_formats(run: Path) -> None:
    """Refuse a run that a later agentrl wrote, or that has a checkpoint which a later one did."""
    formats.check_run(run)
    of_files = {STATE: formats.CHECKPOINT, manifest.NAME: formats.MANIFEST}
    for file, expected in ((path / name, each) for path in step_folders(run) for name, each in of_files.items()):
        try:
            found = orjson.loads(file.read_bytes())
        except (OSError, ValueError):  # missing or damaged, which is found later
            continue
        if isinstance(found, dict):
            expected.check(found, file)


def step_folders(run: Path) -> list[Path]:
    """The folders with a checkpoint's name, complete or not, oldest first."""
    found = [path for path in (run / "checkpoints").glob("step-*") if path.name.removeprefix("step-").isdecimal()]
    return sorted(found, key=step_of)


def whole_checkpoints(run: Path) -> list[Path]:
    """Whole checkpoints, oldest first: one whose trainer is still being written is not whole yet."""
    return [path for path in step_folders(run) if (path / "trainer").exists()]


def step_of(checkpoint: Path) -> int:
    """Return the number of steps that were done at a checkpoint."""
    return int(checkpoint.name.removeprefix("step-"))


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of a tree of settings by their dotted names, in order."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def _word(name: str, settings: Mapping[str, Any]) -> str:
    """A setting as it is typed: env=calculator, not env.name=calculator."""
    return f"{name.removesuffix('.name')}={settings.get(name)}"


def saved_steps(folder: Path) -> int:
    """The steps of a warm start that its newest saved trainer has behind it; 0 where none is saved."""
    return max((int(path.name) for path in folder.glob("*") if path.name.isdecimal()), default=0)
