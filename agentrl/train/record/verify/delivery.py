"""A check that published weights are those that were saved: an engine that loads a checkpoint has the same checksum."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agentrl.common import custom_code
from agentrl.config import EngineConfig
from agentrl.config.policies import MODEL, PAST
from agentrl.errors import AgentRLError, brief
from agentrl.rollout.engines import make_engine
from agentrl.rollout.engines.managed import as_managed
from agentrl.train.driver import setup
from agentrl.train.driver.resuming import step_of, whole_checkpoints
from agentrl.train.record.state import part
from agentrl.train.record.verify.recorded import Recorded
from agentrl.train.record.verify.report import Check, Discrepancy
from agentrl.types import MAIN


def check_checkpoints(recorded: Recorded, check: Check, *, trust: bool = False) -> None:
    """Compare each whole checkpoint, in an engine of its own, with the engines' checksums of its version.

    Args:
        recorded: the run's record; each policy that learned has a part of every checkpoint.
        check: gets what differs, what can't be compared, and the policies of which nothing is.
        trust: let code in the checkpoints run.
    """
    for policy in (recorded, *recorded.others):
        _check_policy(policy, check, trust)
    for name, settings in recorded.starts[-1][1].policies.items():
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
            check.faults.append(Discrepancy(folder.relative_to(checkpoint.parent).as_posix(), what))


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
