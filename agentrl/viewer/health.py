"""Alarms: what looks wrong in a run's metrics, why that matters, what to do, and which sessions show it.

Each rule is a function of the run's rows. Thresholds are those at which experience says that a person should look, not
proof of a fault; each says its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from statistics import fmean
from typing import Any

from agentrl.train.display import panel
from agentrl.train.driver import lost_tokens
from agentrl.viewer.series import WINDOW, Row, mean

EARLY = 5
"""Steps below which nothing is compared with a run's beginning."""


class Level(StrEnum):
    """The severity of an alarm."""

    WARNING = "warning"
    ALARM = "alarm"


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something to look at."""

    level: Level
    title: str
    reason: str
    advice: str
    metric: str
    sessions: dict[str, str]


def alarms(rows: Sequence[Row], settings: dict[str, Any]) -> list[dict[str, Any]]:
    """The alarms of a run, the worst first."""
    if not rows:
        return []
    found = [alarm for rule in RULES for alarm in rule(rows, settings)]
    return [asdict(alarm) for alarm in sorted(found, key=lambda alarm: alarm.level is not Level.ALARM)]


def _last(rows: Sequence[Row], name: str) -> float | None:
    return mean(rows[-WINDOW:], name)


def _span(rows: Sequence[Row]) -> str:
    first, last = rows[-WINDOW:][0]["step"], rows[-1]["step"]
    return f"step {last}" if first == last else f"steps {first} to {last}"


def _steps(rows: Sequence[Row]) -> dict[str, str]:
    """Sessions begun in the window: they carry the steps done when they began, one less than the row's."""
    return {"phase": "train", "step": f"{rows[-WINDOW:][0]['step'] - 1}..{rows[-1]['step'] - 1}"}


def _slowest(rows: Sequence[Row]) -> dict[str, str]:
    """The window's sessions, those first that took the longest: what others waited for."""
    return {**_steps(rows), "sort": "duration", "descending": "1"}


def mismatch(rows: Sequence[Row], settings: dict[str, Any]) -> Iterator[Alarm]:
    """Engine and trainer give the same token other log-probabilities."""
    bound = settings.get("mismatch_bound")
    value = _last(rows, "mismatch/abs_mean")
    if value is not None and isinstance(bound, int | float) and value > bound / 2:
        over = value > bound
        yield Alarm(
            Level.ALARM if over else Level.WARNING,
            "Engine and trainer disagree",
            f"In {_span(rows)} a token's log-probability differs by {value:.2g} nats on average between the engine "
            f"that drew it and the trainer ({'over' if over else 'over half of'} mismatch_bound={bound:g}).",
            "Compare dtypes (engine.dtype, trainer.dtype) and check that weights arrive: agentrl models check MODEL. "
            "A correction (algo.correction) reduces the bias while you look.",
            "mismatch/abs_mean",
            _steps(rows),
        )


def entropy(rows: Sequence[Row], settings: dict[str, Any]) -> Iterator[Alarm]:
    """Alarm if the policy became certain."""
    known = [row["policy/entropy"] for row in rows if isinstance(row.get("policy/entropy"), float)]
    if len(known) < 2 * EARLY:
        return
    before, now = fmean(known[:EARLY]), fmean(known[-EARLY:])
    if before > 0.05 and now < 0.2 * before:
        yield Alarm(
            Level.WARNING,
            "Entropy has collapsed",
            f"It was {before:.3g} nats a token in the first {EARLY} steps and is {now:.3g} in the last {EARLY}.",
            "Sessions of a group become alike and teach nothing. Lower algo.lr, raise algo.entropy_coef, or clip "
            "higher upward than downward.",
            "policy/entropy",
            _steps(rows),
        )


def no_signal(rows: Sequence[Row], settings: dict[str, Any]) -> Iterator[Alarm]:
    """Groups whose sessions all have the same score."""
    share = _last(rows, "group/zero_variance")
    count = _last(rows, "group/count")
    if share is None or not count:
        return
    share /= count
    if share > 0.7:
        reward = _last(rows, "reward/mean") or 0.0
        hard = "never solved: choose easier tasks, demonstrate more (warm_start.steps) or reward partial success"
        easy = "always solved: choose harder tasks (rollout.sampler=difficulty)"
        yield Alarm(
            Level.ALARM if share > 0.95 else Level.WARNING,
            "Groups without a signal",
            f"In {_span(rows)} {share:.0%} of the groups have one score for all their sessions, so they teach nothing.",
            f"At a mean reward of {reward:.3g} many tasks are {easy if reward > 0.5 else hard}. "
            "rollout.filter=signal replaces such groups.",
            "group/zero_variance",
            _steps(rows),
        )


def find_lost(rows: Sequence[Row], settings: dict[str, Any]) -> Iterator[Alarm]:
    """Sampled tokens that are not trained, by what took most of them."""
    window = rows[-WINDOW:]
    sampled, causes = sum(row.get(lost_tokens.SAMPLED, 0.0) for row in window), lost_tokens.by_cause(window)
    share = sum(causes.values()) / sampled if sampled else 0.0
    if share >= 0.5:
        yield Alarm(
            Level.ALARM if share == 1 else Level.WARNING,
            "Sampled tokens are not trained",
            f"In {_span(rows)} {lost_tokens.describe_lost(window)}.",
            f"Most: {lost_tokens.advice(window)}.",
            next(iter(causes)).metric,
            _steps(rows),
        )


def failures(rows: Sequence[Row], settings: dict[str, Any]) -> Iterator[Alarm]:
    """Sessions that the infrastructure, the agent, or numbers that the environment gave, failed."""
    ended = [panel.failures(row) for row in rows[-WINDOW:]]
    infra, agent = fmean(row[panel.INFRA] for row in ended), _last(rows, "status/agent_error") or 0.0
    for name, label in panel.INVALID_NUMBERS.items():
        if odd := fmean(row[label] for row in ended):
            yield Alarm(
                Level.ALARM if odd > 0.2 else Level.WARNING,
                label.capitalize(),
                f"In {_span(rows)} {odd:.1%} of the sessions had {label}: no finite numbers in their range. They are "
                "not played again, and never trained on.",
                "Mend the environment, which gives NaN, infinity, text or numbers out of range; errors say which.",
                f"count/{name}",
                {"blame": "infra"},
            )
    if infra > 0.02:
        yield Alarm(
            Level.ALARM if infra > 0.2 else Level.WARNING,
            "Infrastructure failures",
            f"In {_span(rows)} {infra:.1%} of the sessions failed by the infrastructure: they are tried again, never "
            "trained on.",
            "Read their errors: engines that end, sandboxes that do not start, deadlines that are too short.",
            "status/infra_error",
            {"blame": "infra"},
        )
    if agent > 0.2:
        yield Alarm(
            Level.WARNING,
            "The agent fails often",
            f"In {_span(rows)} {agent:.1%} of the sessions ended by an error of the model or the agent's program.",
            "Read their errors; an exception in an agent's program is a mistake in the program.",
            "status/agent_error",
            {**_steps(rows), "status": "agent_error"},
        )


def truncations(rows: Sequence[Row], settings: dict[str, Any]) -> Iterator[Alarm]:
    """Sessions that a limit cut off."""
    share = _last(rows, "status/truncated")
    if share is not None and share > 0.2:
        yield Alarm(
            Level.ALARM if share > 0.6 else Level.WARNING,
            "Sessions are cut off",
            f"In {_span(rows)} {share:.0%} of the sessions reached a limit of tokens, turns or time.",
            "See where they end. Raise rollout.turn_tokens, rollout.session_tokens or rollout.max_turns, or teach "
            "shorter answers.",
            "status/truncated",
            {**_steps(rows), "status": "truncated"},
        )


def tool_calls(rows: Sequence[Row], settings: dict[str, Any]) -> Iterator[Alarm]:
    """Tool calls that fail, that are answered with nothing, or that stopped."""
    calls, errors = _last(rows, "count/tool_calls"), _last(rows, "count/tool_errors") or 0.0
    if calls and errors / calls > 0.5:
        yield Alarm(
            Level.WARNING,
            "Most tool calls fail",
            f"In {_span(rows)} {errors / calls:.0%} of the tool calls were answered with an error.",
            "Read what the tools answer: a schema that the model misreads looks like this as well.",
            "count/tool_errors",
            {**_steps(rows), "tool_errors": "1.."},
        )
    silent = _last(rows, "count/tool_silent")
    if calls and silent and silent / calls > 0.5:
        yield Alarm(
            Level.WARNING,
            "Tools answer with nothing",
            f"In {_span(rows)} {silent / calls:.0%} of the tool calls were answered with an empty text.",
            "A model can't tell whether such a call worked. Let the tool say what it did, and see whether it gets what "
            "it is asked for.",
            "count/tool_silent",
            {**_steps(rows), "tool_calls": "1.."},
        )
    before = mean(rows[:EARLY], "count/tool_calls")
    if before and len(rows) >= 2 * EARLY and (mean(rows[-EARLY:], "count/tool_calls") or 0.0) < 0.1 * before:
        yield Alarm(
            Level.WARNING,
            "Tools are no longer called",
            f"A step had {before:.1f} tool calls in the beginning, and has under a tenth of that now.",
            "Either answers without tools earn as much, or calls can't be parsed any more (count/gateway/malformed).",
            "count/tool_calls",
            {**_steps(rows), "tool_calls": "0..0"},
        )


def stale(rows: Sequence[Row], settings: dict[str, Any]) -> Iterator[Alarm]:
    """Groups thrown away because they grew too old."""
    discarded, count = _last(rows, "stream/discarded_stale"), _last(rows, "group/count")
    if discarded and count and discarded / count > 0.2:
        yield Alarm(
            Level.WARNING,
            "Groups grow too old",
            f"In {_span(rows)} {discarded:.1f} groups a step were discarded as stale, and {count:.1f} trained.",
            "Their generation is lost. Raise rollout.staleness, or lower rollout.oversample.",
            "stream/discarded_stale",
            _slowest(rows),
        )


def stale_caches(rows: Sequence[Row], settings: dict[str, Any]) -> Iterator[Alarm]:
    """Tokens that follow keys and values of older weights."""
    mixed, length, count = (
        _last(rows, name) for name in ("tokens/after_switch", "sessions/trained_tokens", "sessions/count")
    )
    in_place = settings.get("weights.mode") == "in_place"  # all other modes compute them again
    if in_place and mixed and length and count and mixed / (length * count) > 0.2:
        yield Alarm(
            Level.WARNING,
            "Caches are of older weights",
            f"In {_span(rows)} {mixed / (length * count):.0%} of the sampled tokens came after a publication within "
            "their turn (weights.mode=in_place): keys and values before them are those of older weights.",
            "Where mismatch/abs_mean grows with it, take another weights.mode: all others compute them again.",
            "tokens/after_switch",
            _steps(rows),
        )


def idle(rows: Sequence[Row], settings: dict[str, Any]) -> Iterator[Alarm]:
    """Devices that wait for each other."""
    engine, trainer = _last(rows, "time/idle_engine") or 0.0, _last(rows, "time/idle_trainer") or 0.0
    if engine > 0.6:
        yield Alarm(
            Level.WARNING,
            "Engines are idle",
            f"In {_span(rows)} no group was under way for {engine:.0%} of the time.",
            "rollout.staleness=1 generates while the trainer computes.",
            "time/idle_engine",
            _slowest(rows),
        )
    if trainer > 0.9 and len(rows) >= EARLY:
        yield Alarm(
            Level.WARNING,
            "The trainer is idle",
            f"In {_span(rows)} the trainer computed nothing for {trainer:.0%} of the time: generation takes it.",
            "More engines (fleet.engines), a larger rollout.concurrency, or fewer devices for training.",
            "time/idle_trainer",
            _slowest(rows),
        )


def one_component(rows: Sequence[Row], settings: dict[str, Any]) -> Iterator[Alarm]:
    """A reward of several of which one alone moves the sum."""
    own = ("reward/mean", "reward/std", "reward/greedy")
    names = [name for name in rows[-1] if name.startswith("reward/") and name not in own]
    if len(names) < 2 or len(rows) < 2 * EARLY:
        return
    gains = {name: _gain(rows, name) for name in names}
    best = max(gains, key=lambda name: gains[name])
    others = [gain for name, gain in gains.items() if name != best]
    if gains[best] > 0.1 and max(others) < 0.1 * gains[best]:
        yield Alarm(
            Level.WARNING,
            "One component earns the reward",
            f"{best} rose by {gains[best]:.2g}, and no other by more than {max(others):.2g}.",
            "See whether sessions satisfy its form without doing the task; weigh it less, or give it for success only.",
            best,
            {**_steps(rows), best: "0.5.."},
        )


def length(rows: Sequence[Row], settings: dict[str, Any]) -> Iterator[Alarm]:
    """Sessions that grow longer and earn no more."""
    if len(rows) < 2 * EARLY:
        return
    before, now = mean(rows[:EARLY], "sessions/trained_tokens"), mean(rows[-EARLY:], "sessions/trained_tokens")
    if before and now and now > 1.5 * before and _gain(rows, "reward/mean") < 0.02:
        yield Alarm(
            Level.WARNING,
            "Length grows without reward",
            f"A session has {now:.0f} trained tokens, {now / before:.1f} times as many as in the beginning; the reward "
            f"changed by {_gain(rows, 'reward/mean'):+.2g}.",
            "Read the longest ones. A loss normalised per token or a penalty on length counters it.",
            "sessions/trained_tokens",
            {**_steps(rows), "sort": "trained_tokens", "descending": "1"},
        )


def _gain(rows: Sequence[Row], name: str) -> float:
    return (mean(rows[-EARLY:], name) or 0.0) - (mean(rows[:EARLY], name) or 0.0)


Rule = Callable[[Sequence[Row], dict[str, Any]], Iterator[Alarm]]
RULES: tuple[Rule, ...] = (
    *(
        mismatch,
        failures,
        no_signal,
        find_lost,
        truncations,
        entropy,
        tool_calls,
        stale,
        stale_caches,
        idle,
        one_component,
        length,
    ),
)
