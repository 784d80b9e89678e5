"""The verification of a run: checks of its files, then of each step.

Published weights are those that were saved where an engine that loads a checkpoint has the same checksum.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from agentrl.common import custom_code
from agentrl.common.imports import names_only
from agentrl.config import EngineConfig, WeightsConfig
from agentrl.config.policies import MODEL, PAST
from agentrl.errors import AgentRLError, StoreError, brief
from agentrl.rollout.engines import make_engine
from agentrl.rollout.engines.managed import as_managed
from agentrl.sessions.store.store import Store
from agentrl.train.driver import setup
from agentrl.train.driver.resuming import step_of, whole_checkpoints
from agentrl.train.record import ledger, manifest, provenance
from agentrl.train.record.provenance import Published
from agentrl.train.record.state import part
from agentrl.train.record.verify import evaluation, file_checks, recomputed, seal_checks, source_checks, step_checks
from agentrl.train.record.verify.data_checks import StoredTasks, check_data, check_store
from agentrl.train.record.verify.recorded import Recorded, Row
from agentrl.train.record.verify.report import Check, Discrepancy, Report
from agentrl.train.record.verify.texts import Texts, models_apart
from agentrl.types import MAIN


def verify(run: Path, *, weights: bool = False, trust: bool = False) -> Report:
    """Check a run's record, or an evaluation's folder, against itself.

    Args:
        run: its folder; another process may be training in it.
        weights: also load each checkpoint that is there into an engine of the run's kind, and compare the checksum with
            that of the run's engines.
        trust: import what its settings name, and let code in the checkpoints run for `weights`. Without it plug-ins
            that are import paths are known by name alone, and what only they can compute is UNKNOWN.

    Raises:
        ConfigError: there is no run, or a file of it is damaged so that nothing can be checked.
        StoreError: the session store can't be read.
    """
    with contextlib.nullcontext() if trust else names_only():
        return evaluation.verify(run) if evaluation.is_evaluation(run) else _verify(run, weights, trust)


def _verify(run: Path, weights: bool, trust: bool) -> Report:
    recorded = Recorded.read(run)
    files = Check("files", "each step once; models are as they were written")
    store = Check("store", "sessions are as they were written, and whole trees")
    groups = Check("groups", "each is trained once or discarded with a cause; the store has what was trained")
    weight = Check("weights", "each version reached the engines, by their own checksums and the probe")
    sessions = Check("sessions", "each is trained once; none failed by infrastructure")
    versions = Check("versions", "tokens are of published weights, within the staleness bound")
    rewards = Check("rewards", "the scores that credit saw are those that are stored")
    credit = Check("credit", "computed again from the store, advantages and weights are those that were trained")
    tokens = Check("tokens", "packed again from the store, the trainer's forests are the same")
    metrics = Check("metrics", "rows are those of the stored sessions; engine and trainer agreed on their tokens")
    folders = whole_checkpoints(run)
    _check_files(recorded, folders, files)
    file_checks.check_checkpoints(recorded, folders, files)
    file_checks.check_settings(recorded, files)
    file_checks.check_code(recorded, files)
    written = Check("seals", "files, checkpoints and sessions are as they were written, and none is missing")
    sealed = seal_checks.read(run, recorded.last, written)
    if sealed is not None:
        seal_checks.check_files(sealed, folders, written)
    _check_weights(recorded, weight)
    if weights:
        check_checkpoints(recorded, weight, trust=trust)
    data = Check("data", "the tasks are those that the run began with; a number is one task")
    first: dict[str, int] = {}
    tasks, texts = StoredTasks(), Check("texts", "what turns and users say is what their tokens say")
    config = recorded.settings(1)
    with Store(run / "sessions.db", read_only=True) as stored:
        said = Texts(run / "model", texts, models_apart(config.policies), config.agents)
        check_store(stored, store, tasks, said)
        if sealed is not None:
            evaluated = {step: set(stored.ids(phase="eval", step=step)) for step in sealed.evaluations}
            seal_checks.check_sessions(sealed, stored.digests(), evaluated, written)
        check_data(recorded, tasks, data)
        _check_groups(recorded, groups)
        for policy in recorded.others:
            _check_weights(policy, weight)
            for step in policy.steps(stored):
                step_checks.check_versions(step, versions)
                recomputed.compare(step, rewards, credit, tokens)
                step_checks.check_learning(step, metrics)
        for step in recorded.steps(stored):
            step_checks.check_sessions(step, sessions, first)
            step_checks.check_versions(step, versions)
            recomputed.compare(step, rewards, credit, tokens)
            step_checks.check_learning(step, metrics)
            step_checks.check_metrics(step, metrics)
            file_checks.check_seeds(step, sessions)
            file_checks.check_evaluation(step, stored, metrics)
        read = _check_read(recorded, stored)
    checks = [files, written, store, texts, data, groups, weight, sessions, versions, rewards, credit, tokens, metrics]
    checks += read
    return Report(run, recorded.last, checks)


def _check_read(recorded: Recorded, store: Store) -> list[Check]:
    """The checks of a run that reads its sessions; none of another."""
    if (data := recorded.processes[-1].config.data) is None:
        return []
    source = Check("source", "read again, the data gives the sessions that were trained")
    measured = Check("held out", "what was measured is in the metrics, and a margin is its groups'")
    source_checks.check_source(recorded, data, store, source)
    source_checks.check_held_out(recorded, measured)
    return [source, measured]


def _check_files(recorded: Recorded, folders: Sequence[Path], check: Check) -> None:
    run, last = recorded.run, recorded.last
    check.examined["steps"] = last
    if last and not (run / provenance.NAME).exists():
        check.fault(provenance.NAME, "missing: an older agentrl wrote this run, or it was removed")
    every = range(1, last + 1)
    _in_order("metrics.jsonl", [int(row["step"]) for row in recorded.rows], every, check)
    for each in (recorded, *recorded.others):
        _in_order(provenance.NAME, [step for step, _ in each.trained], filter(each.learns, every), check)
    for folder in [*folders, run / "model"]:
        check.examined["models"] += 1
        if fault := manifest.damage(folder):
            check.fault(folder.relative_to(run).as_posix(), fault)


def _in_order(file: str, steps: Sequence[int], expected: Iterable[int], check: Check) -> None:
    """Note where a file's lines are not one for each expected step, in order."""
    wanted = list(expected)
    if steps != wanted:
        pairs = zip_longest(steps, wanted)
        odd = next(one if other is None else other for one, other in pairs if one != other)
        check.fault(file, f"step {odd} is there {steps.count(odd)} times, or out of order")


def _check_groups(recorded: Recorded, check: Check) -> None:
    check.examined["groups"] = len(recorded.entries)
    try:
        check.faults += [Discrepancy(ledger.NAME, fault) for fault in ledger.faults(recorded.run)]
    except StoreError as error:  # of a damaged session, which the check of the store names
        check.fault(ledger.NAME, f"trained groups can't be compared with the store: {error}")


def _check_weights(recorded: Recorded, check: Check) -> None:
    """Publications: one for each version of the metrics, each confirmed by engines, none without effect."""
    rows = {int(row["step"]): row for row in recorded.rows}
    if recorded.rows and recorded.settings(1).data is not None:
        check.told = ["this run reads its sessions: it publishes no weights"]
        return
    versions = {published.version for _, published in recorded.published}
    missing = {int(row["version"]): step for step, row in reversed(rows.items()) if int(row["version"]) not in versions}
    check.faults += [
        Discrepancy(f"step {step}", f"version {version} was given to no engine") for version, step in missing.items()
    ]
    before: Published | None = None
    for step, published in recorded.published:
        check.examined["publications"] += 1
        if published.reference:
            check.examined["compared with an engine that loaded a folder"] += 1
        where = f"step {step}, version {published.version}"
        config = recorded.settings(max(step, 1))
        check.faults += [Discrepancy(where, what) for what in _wrong_publication(published, config.weights)]
        if before is not None:
            learns = step > getattr(config.algo, "value_warmup", 0)  # before that only the critic does
            found = _wrong_order(before, published, rows.get(step) if learns else None)
            check.faults += [Discrepancy(where, what) for what in found]
        if not any(published.checksums.values()):
            check.unknown["publications without an engine's checksum"] += 1
        if published.probe is None and config.weights.probe_tokens and step and before is not None:
            check.unknown["publications without a probe"] += 1
        before = published
    had = {step: each.version for step, each in reversed(recorded.trained)}  # the first line of each step
    for step, row in rows.items():
        trained = had.get(step + 1)
        if trained is not None and trained != row["version"]:
            what = f"the trainer had version {trained}, and after the step before version {row['version']:g}"
            check.fault(f"step {step + 1}", what)


def _wrong_publication(published: Published, weights: WeightsConfig) -> Iterator[str]:
    sums = published.checksums
    if len(set(sums.values())) > 1:
        yield f"engines have other weights than each other: {', '.join(f'{k} {v}' for k, v in sums.items())}"
    if published.undelivered:
        yield published.undelivered
    bound = weights.probe_bound or published.probe_bound
    if published.probe is not None and bound is not None and not published.probe <= bound:
        yield f"the probe found {published.probe:.3g}, over weights.probe_bound={bound:g}"
    if published.caches == "kept" and weights.mode != "in_place":
        yield f"engines kept caches of older weights, which weights.mode={weights.mode} drops"


def _wrong_order(before: Published, published: Published, row: Row | None) -> Iterator[str]:
    """Yield the faults of a publication after another one."""
    one, other = set(before.checksums.values()) - {""}, set(published.checksums.values()) - {""}
    same = (before.version, before.incarnation) == (published.version, published.incarnation)
    comparable = before.engine == published.engine and bool(one and other)
    if same:
        return
    if published.version < before.version and published.incarnation <= before.incarnation and row is not None:
        yield f"published after version {before.version}"
    learned = (
        row is not None and row.get("grad_norm", 0) > 0 and row.get("lr", 0) > 0 and not row.get("skipped_updates")
    )
    if comparable and one == other and learned:
        yield f"the engines' weights are those of version {before.version}: the new ones never arrived"


def check_checkpoints(recorded: Recorded, check: Check, *, trust: bool = False) -> None:
    """Compare each whole checkpoint, in an engine of its own, with the engines' checksums of its version.

    Args:
        recorded: the run's record; each policy that learned has a part of every checkpoint.
        check: gets what differs, what can't be compared, and the policies of which nothing is.
        trust: let code in the checkpoints run.
    """
    for policy in (recorded, *recorded.others):
        _check_policy(policy, check, trust)
    for name, settings in recorded.processes[-1].config.policies.items():
        if settings.name in (MODEL, PAST) and not settings.learns:
            check.told.append(
                f"policies.{name} does not learn: checksums of its engines are not recorded, nor compared"
            )


def _check_policy(recorded: Recorded, check: Check, trust: bool) -> None:
    """Compare a policy's part of each whole checkpoint."""
    after: dict[int, int] = {step: each.version for step, each in reversed(recorded.published) if not step}
    after |= {int(row["step"]): int(row["version"]) for row in recorded.rows}
    last = {published.version: published for _, published in recorded.published}
    prefix = "" if recorded.policy == MAIN else f"policies.{recorded.policy}."
    for checkpoint in whole_checkpoints(recorded.run):
        step, folder = step_of(checkpoint), part(checkpoint, recorded.policy)
        published = last.get(after.get(step, -1))
        sums = set(published.checksums.values()) - {""} if published else set()
        if published is None or not sums:
            check.unknown["checkpoints of weights that no engine was given, or has a checksum of"] += 1
            continue
        config = recorded.settings(max(step, 1))
        if config.fleet.urls or getattr(config.engine, "url", None):
            names = f"{prefix}engine.url, {prefix}fleet.urls"
            check.unknown[f"checkpoints, since the run's engines are servers of others ({names})"] += 1
            continue
        if trust:
            custom_code.allow(folder)
        try:
            found = asyncio.run(_load_checksum(folder, config.engine))
        except AgentRLError as error:
            check.unknown[f"checkpoints that no engine could load: {brief(str(error))}"] += 1
            continue
        check.examined["checkpoints" if recorded.policy == MAIN else f"checkpoints of {recorded.policy}"] += 1
        if {found} != sums:
            what = f"an engine that loads it has the checksum {found}, and version {published.version} had {min(sums)}"
            check.fault(folder.relative_to(checkpoint.parent).as_posix(), what)


async def _load_checksum(folder: Path, settings: EngineConfig) -> str:
    """The checksum of an engine of the run's kind that has loaded a folder."""
    setup.quiet()
    engine = make_engine(settings, folder)
    own = as_managed(engine)
    try:
        await own.start()
        return next(iter((await own.checksums()).values()))
    finally:
        await engine.close()
