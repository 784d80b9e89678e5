"""Measures a suite, part by part, by one policy that is loaded once, and only where something is left to measure.

    runs/suite-NAME-DIGEST/        one folder for each suite and policy; the same command finds it again
        result.json, result.md, result.png
        PART-DIGEST/               an ordinary evaluation, with its sessions; see `agentrl.train.evaluation.evaluate`

A part's folder is named by what its sessions follow from (`content`), so sessions that it holds are valid: those that
have ended are taken, unfinished ones are continued, and more tasks or samples are added to them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from agentrl.envs import sandboxes
from agentrl.envs.registry import make
from agentrl.errors import AgentRLError
from agentrl.rollout.episodes.evaluation import held_out_tasks
from agentrl.sessions.store.store import Store
from agentrl.train.display.console import Display
from agentrl.train.display.panel import TimedProgress
from agentrl.train.evaluation import evaluate
from agentrl.train.evaluation.suite import content, report
from agentrl.train.evaluation.suite.parts import Suite, SuitePart
from agentrl.train.evaluation.suite.results import NAME, Results
from agentrl.train.plan.preflight import check_evaluation
from agentrl.train.record.files import write_atomically
from agentrl.train.record.run_folder import RunFolder
from agentrl.types import Session

WANTED = "requested"
"""Under this key a part's result says which tasks and how many samples it is of."""


@dataclass(frozen=True)
class Planned:
    """A part that is to be measured, or has been.

    Attributes:
        part: its settings.
        folder: where its sessions are.
        wanted: a digest of its tasks, and how many samples of each.
        sessions: how many there will be.
        result: what is known already; None where something is left to measure.
    """

    part: SuitePart
    folder: Path
    wanted: Mapping[str, Any]
    sessions: int
    result: Mapping[str, Any] | None


async def run_suite(suite: Suite, display: Display) -> Results:
    """Measure what is not measured yet, and write the results.

    Raises:
        ConfigError: a setting does not fit a part; nothing has been measured then.
        InfraError: every session of a part ended in an infrastructure error.
    """
    began = time.monotonic()
    sandboxes.configure(suite.config.sandbox)
    for part in suite.parts:
        with name_part(part):
            check_evaluation(part.config)
    policy = content.policy_content(suite.config)
    folder = Path(suite.run_dir or f"runs/suite-{suite.name}-{content.digest(policy)}")
    plans = [_plan(part, folder, policy) for part in suite.parts]
    left = [plan for plan in plans if plan.result is None]
    display.say(f"suite {suite.name}: {len(plans)} parts, {len(left)} to measure, in {folder}")
    measured = await _measure(left, len(plans), folder, display) if left else {}
    parts = {plan.part.name: plan.result or measured[plan.part.name] for plan in plans}
    own = suite.config
    who = evaluate.label(own.policy, own.played_by, own.api, own.agent)
    results = Results(suite.name, who, parts, time.monotonic() - began, folder)
    write_atomically(folder / NAME, results.to_json())
    report.write(results, folder)
    return results


@contextmanager
def name_part(part: SuitePart) -> Iterator[None]:
    """Add to an error in which part it is."""
    try:
        yield
    except AgentRLError as error:
        error.add_note(f"in the suite's part {part.name!r}")
        raise


def _plan(part: SuitePart, folder: Path, policy: Mapping[str, Any]) -> Planned:
    config = part.config
    env = make(config.env.name, **config.env.kwargs)
    tasks = held_out_tasks(config.eval, env)
    key = content.digest([policy, content.part_content(config, env)])
    own = folder / f"{part.name}-{key}"
    chosen = config.eval.model_dump(include={"n", "solved_at", "prompt_price", "completion_price"})
    wanted = {"tasks": content.tasks_content(tasks), **chosen}
    return Planned(part, own, wanted, len(tasks) * config.eval.n, _find_known(own, wanted))


def _find_known(folder: Path, wanted: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A part's result, where it is of what is wanted, and no session of it was lost to the infrastructure."""
    try:
        found = orjson.loads((folder / NAME).read_bytes())
        return found if found[WANTED] == wanted and not found["infra_errors"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


async def _measure(
    plans: Sequence[Planned], parts: int, folder: Path, display: Display
) -> dict[str, Mapping[str, Any]]:
    configs = [evaluate.resolve_config(plan.part.config) for plan in plans]
    whole = TimedProgress("suite", sum(plan.sessions for plan in plans))
    results: dict[str, Mapping[str, Any]] = {}

    def ended(session: Session) -> None:
        whole.done += 1

    with display:
        async with evaluate.loaded_policy(configs, folder, display) as rollouts_of:
            for number, (plan, config) in enumerate(zip(plans, configs, strict=True), parts - len(plans) + 1):
                with (
                    name_part(plan.part),
                    closing(RunFolder.create(plan.folder, config, again=True)) as own,
                    Store(plan.folder / "sessions.db") as store,
                ):
                    _, results[plan.part.name] = await evaluate.measure(
                        rollouts_of,
                        own,
                        store,
                        display,
                        name=f"{plan.part.name} ({number} of {parts})",
                        detail=lambda: f"suite: {whole}",
                        ended=ended,
                        about={WANTED: plan.wanted},
                        hint="; the same command goes on from there",
                    )
    return results
