"""Advice on what to try next, where a run's held-out reward did not rise."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import fmean

from agentrl.rollout.stream.batch_metrics import Evaluation
from agentrl.train.driver.lost_tokens import SAMPLED, Cause
from agentrl.train.record import chain
from agentrl.train.record.run_folder import Metrics

MORE = 4
"""The factor of a next run's length."""
NEAR_TOP = 0.05
"""Part of the top reward: where less is left, there is too little to rise by."""
SELDOM = 0.25
"""Part of the top reward: a policy that gets less is seldom better or worse than itself."""


def next_try(
    run: Path,
    settings: tuple[int, int, int],
    before: Evaluation,
    after: Evaluation,
    rows: Sequence[Metrics],
    tops: Collection[float],
) -> str:
    """Say why the held-out reward did not rise, as far as the run shows, and the command of a run that may.

    Args:
        run: its folder.
        settings: its `steps`, `warm_start.steps` and `rollout.group_size`.
        before: the evaluation before training.
        after: that after it.
        rows: each step's metrics.
        tops: mean rewards that can't be surpassed (`lost_tokens.top_scores`).

    Returns:
        One or two lines; '' where the reward rose, was at its top, or no task was scored in both.
    """
    change, low, high = after.change_from(before)
    if math.isnan(low) or low > 0 or not rows:
        return ""
    top = max(filter(math.isfinite, tops), default=math.nan)  # NaN: none is known, and nothing is compared with it
    if top - before.mean <= NEAR_TOP * abs(top):
        return ""
    found = f"the held-out reward did not rise: {change:+.3f} [{low:+.3f}, {high:+.3f}], paired by task"
    words, why = _proposal(*settings, rows, top)
    begin = [f"resume={run}"]
    if "warm_start.steps" in words:  # which are those before step 1
        begin = ["--config", str(run / "config.yaml"), f"run_dir={run}-again"]
    if whole := chain.chain_of(run):  # later stages begin with its result
        begin = ["--config", str(whole / chain.SETTINGS), f"run_dir={whole}-again"]
        words = {f"stages.{run.name}.{name}": value for name, value in words.items()}
    command = shlex.join(["agentrl", "train", *begin, *(f"{name}={value}" for name, value in words.items())])
    return f"{found}: {why}; try\n  {command}"


def _proposal(
    taken: int, imitated: int, group_size: int, rows: Sequence[Metrics], top: float
) -> tuple[dict[str, int], str]:
    rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
    last = fmean(rewards[-max(1, len(rewards) // 4) :]) if rewards else 0.0
    sampled = sum(row.get(SAMPLED, 0.0) for row in rows)
    flat = sum(row.get(Cause.FLAT.metric, 0.0) for row in rows) / sampled if sampled else 0.0
    steps = {"steps": MORE * taken}
    if flat > 0.5 and last < SELDOM * top and imitated:
        more = {"warm_start.steps": MORE * imitated}
        return more | steps, f"it is earned seldom ({last:.2f}), so there is little to compare: imitate longer first"
    if flat > 0.5:
        more = {"rollout.group_size": 2 * group_size}
        return more | steps, f"sessions of a group score the same ({flat:.0%} of the tokens): larger groups differ more"
    return steps, f"{len(rows)} steps tell too little; the mean of those that were trained on was {last:.2f} at the end"
