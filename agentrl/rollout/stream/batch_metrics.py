"""Metrics of a batch of sessions: of a step and of an evaluation."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any

from agentrl.common.untrusted import safe_json
from agentrl.config import EvalConfig
from agentrl.envs.results import INVALID, invalid
from agentrl.rollout.stream.health import sessions_of, worked
from agentrl.rollout.stream.statistics import ROUNDING, caution, in_unit_range, interval, pass_at_k, pass_hat_k
from agentrl.rollout.stream.usage import Usage
from agentrl.rollout.workers.held import sizes_of, usage
from agentrl.types import MAIN, Group, Session, Status


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """The step's rollouts in numbers: rewards by name, groups, turns, tokens, how sessions ended, counters."""
    sessions = sessions_of(groups)
    scored = [session for group in groups for session in group.scored]
    metrics: dict[str, float] = {**_rewards(scored), **_groups(groups), **_shape(sessions)}
    ends = Counter(session.status for session in sessions)
    for status in Status:
        if status is not Status.OPEN:
            metrics[f"status/{status.value}"] = ends[status] / max(len(sessions), 1)
    counters: Counter[str] = Counter()
    for session in sessions:
        counters.update(session.counters)
    metrics |= {f"count/{name}": float(value) for name, value in sorted(counters.items())}
    return metrics | _by_environment(groups)


def _by_environment(groups: Sequence[Group]) -> dict[str, float]:
    """Each environment's groups, reward and turns, where there are several."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        for name in {session.environment for session in group.sessions}:
            found.setdefault(name, []).append(group)
    metrics: dict[str, float] = {}
    for name, own in sorted(found.items()) if len(found) > 1 else ():
        whole = _rewards([session for group in own for session in group.scored]) | _shape(sessions_of(own))
        metrics[f"env/{name}/groups"] = float(len(own))
        chosen = ("reward/mean", "sessions/turns", "sessions/tokens")
        metrics |= {f"env/{name}/{key}": whole[key] for key in chosen if key in whole}
    return metrics


def _rewards(scored: Sequence[Session]) -> dict[str, float]:
    scores = [session.score or 0.0 for session in scored]
    metrics = {"reward/mean": fmean(scores), "reward/std": pstdev(scores)} if scores else {}
    by_name: dict[str, list[float]] = {}
    for session in scored:
        for name, value in session.rewards.items():
            by_name.setdefault(name, []).append(value)
    return metrics | {f"reward/{name}": fmean(values) for name, values in by_name.items()}


def _groups(groups: Sequence[Group]) -> dict[str, float]:
    spreads = [pstdev([s.score or 0.0 for s in group.scored]) for group in groups if group.scored]
    return {
        "group/count": float(len(groups)),
        "group/size": fmean(len(group.scored) for group in groups) if groups else 0.0,
        "group/std": fmean(spreads) if spreads else 0.0,
        "group/zero_variance": float(sum(spread == 0 for spread in spreads)),
    }


def _shape(sessions: Sequence[Session]) -> dict[str, float]:
    if not sessions:
        return {"sessions/count": 0.0}
    sizes = [sizes_of(session) for session in sessions]
    return {
        "sessions/count": float(len(sessions)),
        "sessions/turns": fmean(size.turns for size in sizes),
        "sessions/turns_max": float(max(size.turns for size in sizes)),
        "sessions/tokens": fmean(size.tokens for size in sizes),
        "sessions/tokens_max": float(max(size.tokens for size in sizes)),
        "sessions/trained_tokens": fmean(size.trainable for size in sizes),
        "tokens/after_switch": float(sum(size.after_switch for size in sizes)),
    }


def staleness(groups: Sequence[Group], version: int) -> dict[str, float]:
    """Return how many versions behind `version` the policy was that sampled the tokens.

    The mean over tokens, the maximum, and where that is not 0 the share of the tokens at each distance. Tokens of
    policies besides the main one, whose versions count other updates, are left out.
    """
    tokens: Counter[int] = Counter()
    for session in sessions_of(groups):
        for node in (node for node in session.nodes if node.policy in (None, MAIN)):
            for span in (span for span in node.versions if span.end > span.start):
                tokens[version - span.version] += span.end - span.start
    if not tokens:
        return {}
    total = tokens.total()
    mean = sum(behind * count for behind, count in tokens.items()) / total
    shares = {f"staleness/share_{behind}": count / total for behind, count in sorted(tokens.items())}
    return {"staleness/mean": mean, "staleness/max": float(max(tokens))} | (shares if max(tokens) else {})


def idle(row: Mapping[str, float]) -> dict[str, float]:
    """The shares of a step's time in which the engine generated nothing, and in which the trainer computed nothing."""
    step = row["time/step"]
    busy = sum(row.get(f"time/{phase}", 0.0) for phase in ("train", "values", "logprobs"))
    return {
        "time/idle_engine": min(row["time/engine_idle"] / step, 1.0),
        "time/idle_trainer": max(1 - busy / step, 0.0),
    }


# --------------------------------------------------------------------------------------- evaluation


@dataclass(frozen=True, slots=True)
class TaskScores:
    """The scores of a task's sessions, for comparison with another policy's on the same task.

    Attributes:
        task: its id, with the part of a mixture that it is from before it.
        digest: of its data; two tasks of one id and different data are not compared.
        scores: of the sessions that count.
    """

    task: str
    digest: str
    scores: list[float]

    @classmethod
    def of(cls, group: Group) -> TaskScores:
        """Return the scores of a group's sessions."""
        task = group.task
        try:
            data = json.dumps(task.data, sort_keys=True, default=str).encode()
        except (TypeError, ValueError):  # keys of several types
            data = json.dumps(safe_json(task.data, whole=True), sort_keys=True).encode()
        name = f"{task.environment}/{task.id}" if task.environment else task.id
        scores = [session.score or 0.0 for session in group.scored]
        return cls(name, hashlib.blake2b(data, digest_size=8).hexdigest(), scores)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A policy's results on a split.

    `mean` is over tasks; `low` and `high` bound it with 95 % confidence. `pass_at[k]` estimates the chance that at
    least one of k sessions solves a task, `pass_hat[k]` the chance that all of them do, for every k up to the smallest
    number of sessions that a task has. Of `generated` sessions
    `sessions` count; `invalid` counts those whose rewards, or critic's views, are no numbers. `worked`: one had a turn
    and did not fail, or earned something; otherwise the numbers say nothing about the policy. `usage`, `cost` (None
    without a price) and `errors` are of all that were generated.
    """

    tasks: int
    sessions: int
    mean: float
    low: float
    high: float
    pass_at: Mapping[int, float]
    pass_hat: Mapping[int, float]
    infra_errors: int
    generated: int
    worked: bool
    usage: Usage
    cost: float | None
    errors: Mapping[str, int]
    scores: Sequence[TaskScores]
    metrics: Mapping[str, float]
    invalid: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        ends = sorted({min(self.pass_at), max(self.pass_at)}) if self.pass_at else []
        passes = "  ".join(
            f"pass@{k} {self.pass_at[k]:.3f}" + (f"  pass^{k} {self.pass_hat[k]:.3f}" if k > 1 else "") for k in ends
        )
        within = "" if math.isnan(self.low) else f"  95% CI [{self.low:.3f}, {self.high:.3f}]{self._caution()}"
        return f"mean {self.mean:.3f}{within}  {passes}  n={self.sessions}{self._lost()}"

    @property
    def summary(self) -> str:
        """The mean and its bounds."""
        return f"{self.mean:.3f}" + (
            "" if math.isnan(self.low) else f" [{self.low:.3f}, {self.high:.3f}]{self._caution()}"
        )

    def change_from(self, before: Evaluation) -> tuple[float, float, float]:
        """The mean difference of the tasks that have scores in both, and its 95 % bounds; NaN where there are none."""
        means = {task.task: fmean(task.scores) for task in before.scores if task.scores}
        both = [fmean(task.scores) - means[task.task] for task in self.scores if task.scores and task.task in means]
        low, high = interval(both, bounded=False)
        return fmean(both) if both else math.nan, low, high

    def _caution(self) -> str:
        said = score_caution([task.scores for task in self.scores])
        return f" ({said})" if said else ""

    def _lost(self) -> str:
        unrewarded = self.generated - self.sessions - self.infra_errors - sum(self.invalid.values())
        kinds = {"lost to infrastructure": self.infra_errors, "without a reward": unrewarded}
        kinds |= {INVALID[name]: number for name, number in self.invalid.items()}
        reasons = ", ".join(f"{number} {kind}" for kind, number in kinds.items() if number)
        return f" of {self.generated} ({reasons})" if reasons else ""


def score_caution(scores: Sequence[Sequence[float]]) -> str:
    """Return the warning beside an evaluation's interval, by its tasks' scores; see `caution`."""
    means = [fmean(task) for task in scores if task]
    return caution(means, bounded=in_unit_range([score for task in scores for score in task]))


def summarise(scores: Sequence[Sequence[float]], solved_at: float) -> dict[str, Any]:
    """An evaluation's `mean`, `low`, `high`, `pass_at` and `pass_hat`; each task's mean counts once.

    Args:
        scores: of each task's sessions; a task without any is left out.
        solved_at: the score from which on a session has solved its task.
    """
    played = [task for task in scores if task]
    means = [fmean(task) for task in played]
    low, high = interval(means, bounded=in_unit_range([score for task in played for score in task]))
    ks = range(1, min(map(len, played), default=0) + 1)
    solved = [(len(task), sum(score >= solved_at - ROUNDING for score in task)) for task in played]
    return {
        "mean": fmean(means) if means else math.nan,
        "low": low,
        "high": high,
        "pass_at": {k: fmean(pass_at_k(n, c, k) for n, c in solved) for k in ks},
        "pass_hat": {k: fmean(pass_hat_k(n, c, k) for n, c in solved) for k in ks},
    }


def evaluate_groups(groups: Sequence[Group], config: EvalConfig) -> Evaluation:
    """Summarise sessions of an evaluation; each task's mean counts once, so uneven groups don't skew it."""
    scores = [TaskScores.of(group) for group in groups]
    played = [task.scores for task in scores if task.scores]
    sessions = sessions_of(groups)
    spent = usage(sessions)
    return Evaluation(
        **summarise(played, config.solved_at),
        tasks=len(played),
        sessions=sum(map(len, played)),
        infra_errors=sum(s.status is Status.INFRA_ERROR and not invalid(s) for s in sessions),
        generated=len(sessions),
        worked=any(map(worked, sessions)),
        usage=spent,
        cost=spent.cost(config.prompt_price, config.completion_price),
        errors=errors_by_blame(sessions),
        scores=scores,
        metrics=rollout_metrics(groups),
        invalid=Counter(filter(None, map(invalid, sessions))),
    )


def errors_by_blame(sessions: Sequence[Session]) -> dict[str, int]:
    """Count sessions that the agent or the infrastructure failed, or a limit cut; and tool calls that failed.

    Where there are some, sessions whose rewards, or critic's views, are no numbers have counts of their own.
    """
    ends = Counter(session.status for session in sessions if not invalid(session))
    return Counter(filter(None, map(invalid, sessions))) | {
        "agent": ends[Status.AGENT_ERROR],
        "infra": ends[Status.INFRA_ERROR],
        "truncated": ends[Status.TRUNCATED],
        "tool_calls": sum(session.counters.get("tool_errors", 0) for session in sessions),
    }
