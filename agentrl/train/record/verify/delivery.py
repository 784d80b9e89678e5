"""A check that published weights are those that were saved: an engine that loads a checkpoint has the same checksum."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agentrl.common import custom_code
from agentrl.config import EngineConfig
from agentrl.errors import AgentRLError, brief
from agentrl.rollout.engines import make_engine
from agentrl.rollout.engines.managed import as_managed
from agentrl.train.driver import setup
from agentrl.train.driver.resuming import step_of, whole_checkpoints
from agentrl.train.record.verify.recorded import Recorded
from agentrl.train.record.verify.report import Check


def check_checkpoints(recorded: Recorded, check: Check, *, trust: bool = False) -> None:
    """Compare each whole checkpoint, in an engine of its own, with the engines' checksums of its version."""
    versions = {int(row["step"]): int(row["version"]) for row in recorded.rows}
    last = {published.version: published for _, published in recorded.published}
    for folder in whole_checkpoints(recorded.run):
        step = step_of(folder)
        published = last.get(versions.get(step, -1))
        sums = set(published.checksums.values()) - {""} if published else set()
        if published is None or not sums:
            continue
        config = recorded.settings(max(step, 1))
        if config.fleet.urls or getattr(config.engine, "url", None):
            check.unknown["checkpoints, since the run's engines are servers of others (engine.url, fleet.urls)"] += 1
            continue
        if trust:
            custom_code.allow(folder)
        try:
            found = asyncio.run(_load_checksum(folder, config.engine))
        except AgentRLError as error:
            check.unknown[f"checkpoints that no engine could load: {brief(str(error))}"] += 1
            continue
        check.examined["checkpoints"] += 1
        if {found} != sums:
            what = f"an engine that loads it has the checksum {found}, and version {published.version} had {min(sums)}"
            check.fault(folder.name, what)


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
