"""A run's record for running it again (`rerun=`), and the comparison of steps and weights with it.

`starts.jsonl` has a line for each process that trained in the folder: the step it began at, the machine (kind of CPU,
cores, threads of engine and trainer), versions, its settings, and the identity of its data (`data_identity`). Groups,
their order and their discards are in the ledger; tokens, cuts and versions in the session store
(`rollout.rerun.rollouts`).
"""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from collections.abc import Mapping
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from agentrl import __version__
from agentrl.common import cores, native
from agentrl.config import EngineConfig, FleetConfig, WeightsConfig
from agentrl.envs.data import identity
from agentrl.errors import ConfigError, Diverged
from agentrl.rollout.engines import ENGINES
from agentrl.rollout.fleet import count_beside, divide_cores
from agentrl.rollout.fleet.admission import SharedEngine
from agentrl.rollout.rerun.engine import Recording
from agentrl.rollout.stream.outcomes import TRAINED, GroupOutcome
from agentrl.sessions.store.store import Store
from agentrl.train.display.console import Display
from agentrl.train.driver import resuming
from agentrl.train.record import kept_code, ledger, manifest
from agentrl.train.record.data_identity import read_starts
from agentrl.train.record.files import are_same, read_metrics
from agentrl.train.record.run_folder import RunFolder
from agentrl.train.record.seals import METRICS
from agentrl.train.record.state import last_attempts
from agentrl.train.trainers import Trainer
from agentrl.types import MAIN, Engine, Session

BY_TIME = ("time/", "idle/", "throughput/", "stream/", "groups/", "resumed/", "signal/")
"""Metrics that depend on speed, on groups that were discarded or left out, or on interruptions: not compared."""
EVALUATED = "eval/mean"
"""The metric of steps that were evaluated: a process's last step is not, since the run is evaluated after it."""
UNLIMITED = {"turn_timeout": 1e8, "timeout": 1e9, "group_deadline": None, "max_replaced": 0}
"""Rollout settings of a rerun: nothing is ended by the clock, and no group is replaced that the recording trained."""


def settings(run: Path) -> dict[str, Any]:
    """The settings with which a run is run again: its own, without deadlines, in another folder."""
    saved = kept_code.usable(run, resuming.read_settings(run, "rerun"))
    steps = max((entry.step for entry in ledger.read(run)), default=0)
    if steps < saved["steps"]:
        raise ConfigError(f"rerun={str(run)!r}: the run has {steps} of its {saved['steps']} steps; resume it first")
    if reuse := saved["rollout"].get("reuse", saved["rollout"].get("replay")):  # `replay`: of a run before decision 393
        raise ConfigError(f"rerun={str(run)!r}: rollout.reuse={reuse:g}: groups that are used again can't be rerun")
    if saved["weights"]["mode"] == "in_place":
        raise ConfigError(
            f"rerun={str(run)!r}: weights.mode=in_place keeps keys and values of older weights, whose versions are not "
            "recorded; it can't be run again"
        )
    return {
        **saved,
        "run_dir": None,
        "resume": None,
        "checkpoint_url": None,
        "rollout": {**saved["rollout"], **UNLIMITED},
    }


def load(run: Path, engine: Engine, weights: WeightsConfig, *, answers: bool) -> Recording:
    """The recording of a run.

    Raises:
        ConfigError: the engine does not promise the same tokens again, or the ledger lacks what was trained; or it
            computes by another kernel than the recorded one, which gives other bits.
    """
    if not engine.capabilities.deterministic:
        raise ConfigError(
            f"rerun={run}: engine={engine.capabilities.name} does not promise the same tokens for the same request "
            "(capabilities.deterministic), so a rerun would prove nothing"
        )
    require_kernel(run, engine.capabilities.kernel)
    trained: dict[int, list[GroupOutcome]] = defaultdict(list)
    for entry in ledger.read(run):
        if entry.outcome.outcome == TRAINED:
            trained[entry.step].append(entry.outcome)
    sessions: dict[tuple[str, int], Session] = {}
    with Store(run / "sessions.db", read_only=True) as store:
        for outcomes in trained.values():
            for outcome in outcomes:
                for session in last_attempts(store, outcome.group):
                    sessions[session.group, session.sample] = session
    aborted = weights.mode == "abort" and isinstance(engine, SharedEngine)
    return Recording(trained, sessions, aborted, answers)


def require_kernel(run: Path, own: str) -> None:
    """Refuse a rerun by another kernel than the run's; `own` is empty where an engine has no choice of kernels."""
    starts = read_starts(run)
    others = sorted({start.get("engine_kernel") or "torch" for start in starts} - {own})
    if own and others:
        raise ConfigError(
            f"rerun={str(run)!r} was generated by the kernel {', '.join(others)}, and engine=local has {own} here, "
            "whose bits are others. What torch generated is run again with engine.kernel=torch; what was compiled, "
            "with the same version of agentrl on a processor of the same kind"
        )


def write_start(folder: RunFolder, trainer: Trainer, display: Display, start: int) -> None:
    """Record where and with what a process trains after the step `start`; a rerun names what differs."""
    config = folder.config
    own = {
        **machine(config.engine, config.fleet, folder.path / "model", trainer, count_beside(MAIN, config.fleets)),
        "settings": folder.settings(),
        "code": kept_code.digests(folder.path),
        identity.KEY: identity.json(folder.data),
    }
    folder.begin(start, own)
    if config.rerun:
        for line in differences(Path(config.rerun), own):
            display.warn(line)
        folder.check_row = _row_check(Path(config.rerun))


def machine(engine: EngineConfig, fleet: FleetConfig, model: Path, trainer: Trainer, beside: int = 0) -> dict[str, Any]:
    """Return what numbers may depend on besides seeds and settings; for `beside`, see `divide_cores`."""
    engines = divide_cores(engine, fleet, model, beside)
    users = os.environ[cores.VARIABLE] if cores.set_by_user() else None
    return {
        "python": platform.python_version(),
        "torch": version("torch"),
        "agentrl": __version__,
        "cpu": native.processor(),
        "cores": len(cores.list_allowed()),
        "engines": len(engines),
        "engine_kernel": ENGINES.find(engine.name).kernel(engine),
        "engine_threads": engines[0].threads or users,
        "trainer_threads": trainer.threads or users,
    }


def differences(run: Path, own: Mapping[str, Any]) -> list[str]:
    """List what differs on this machine from where a run was recorded, and what changed during the run."""
    starts, found = read_starts(run), []
    for name in ("python", "torch", "agentrl", "cpu", "engines", "engine_threads", "trainer_threads"):
        recorded = sorted({str(start[name]) for start in starts} - {str(own[name])})
        if recorded:
            found.append(f"{name} is {own[name]}, and was {', '.join(recorded)} where {run} was recorded")
    if known := {digest for start in starts for digest in start.get("code", {}).values()}:
        changed = [name for name, digest in own["code"].items() if digest not in known]
        found += [f"{name} is another file than where {run} was recorded" for name in changed]
    for before, after in pairwise(starts):
        changed = [name for name, value in after["settings"].items() if value != before["settings"].get(name)]
        if changed := [name for name in changed if name != "resume"]:
            found.append(f"{run}: settings changed after step {after['step']}: {', '.join(changed)}")
    return found


def compare_weights(run: Path, rerun: Path) -> str:
    """Compare the weights of the last step's checkpoints, bit for bit.

    Returns:
        A line that says what was compared.

    Raises:
        Diverged: they differ.
    """
    newest, own = resuming.whole_checkpoints(run)[-1:], resuming.whole_checkpoints(rerun)[-1:]
    if not newest or not own or newest[0].name != own[0].name:
        return f"the rerun equals {run} in tokens and metrics; it has no checkpoint of the same step to compare with"
    files = sorted(path.name for path in own[0].glob("*.safetensors"))
    for name in files:
        if not (newest[0] / name).exists() or manifest.digest(newest[0] / name) != manifest.digest(own[0] / name):
            raise Diverged(f"{own[0] / name}: other weights than in {newest[0]}, at the same tokens and metrics")
    return f"the rerun equals {run}: tokens, log-probabilities, metrics, and the weights of {own[0].name}"


def _row_check(run: Path) -> Any:
    rows = {row["step"]: row for row in read_metrics(run / METRICS)}
    if not rows:
        raise ConfigError(f"rerun={str(run)!r} has no {METRICS}, or an empty one: its steps can't be compared")

    def check(row: Mapping[str, float]) -> None:
        recorded = rows.get(row["step"])
        if recorded is None:
            return
        left_out = BY_TIME if EVALUATED in recorded.keys() & row.keys() else (*BY_TIME, "eval/")
        for name in sorted(recorded.keys() | row.keys()):
            if not name.startswith(left_out) and not are_same(recorded.get(name), row.get(name)):
                raise Diverged(
                    f"step {row['step']:g}, {name}: the recording has {recorded.get(name)}, the rerun {row.get(name)}"
                )

    return check
