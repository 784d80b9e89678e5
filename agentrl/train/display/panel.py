"""Drawing of a run's progress: the panel of `agentrl train` and `agentrl top`, and a line per step without one.

A row of the panel has a label and cells, the most important first. Cells that do not fit the width are left out, so
nothing wraps at any width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.panel import Panel as Box
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentrl.config.policies import METRICS
from agentrl.envs.results import INVALID_REWARDS, INVALID_VIEWS
from agentrl.train.driver import lost_tokens

BLOCKS = "▁▂▃▄▅▆▇█"
LABEL = 10
"""Columns of a row's label."""
BORDER = 4
"""Columns of the panel's border and padding."""
PHASES = ("rollout", "reference", "values", "pack", "logprobs", "train", "publish", "prove", "publish_average", "eval")
"""The phases of a step, as the loop's clock names them."""
INFRA = "infra errors"
FAILURES = {
    "status/infra_error": INFRA,
    "status/agent_error": "agent errors",
    "status/truncated": "truncated",
    "status/aborted": "aborted",
}
"""Shares of a step's sessions that did not complete, by who or what ended them; shown where they are not 0."""
INVALID_NUMBERS = {INVALID_REWARDS: "invalid rewards", INVALID_VIEWS: "invalid views"}
"""Counts of those whose environment gave no numbers."""


@dataclass
class TimedProgress:
    """A count out of a total, and its start."""

    name: str
    total: int
    done: int = 0
    unit: str = ""
    began: float = field(default_factory=time.monotonic)
    detail: Callable[[], str] = str
    """The current text beside the bar."""

    def __post_init__(self) -> None:
        self._first = self.done

    def seconds_left(self) -> float:
        """Return the seconds left, at the rate so far; 0 where that is unknown."""
        if not self._first < self.done < self.total:
            return 0.0
        return (time.monotonic() - self.began) / (self.done - self._first) * (self.total - self.done)

    def left(self) -> str:
        """Time left, at the rate so far; '' where that is unknown."""
        return f"{clock(self.seconds_left())} left" if self._first < self.done < self.total else ""

    def __str__(self) -> str:
        count = f"{self.done}/{self.total} {self.unit}".strip() if self.total else ""
        return ", ".join(filter(None, (count, clock(time.monotonic() - self.began), self.left())))


@dataclass(frozen=True)
class Panel:
    """The panel's content at a moment, at whatever width it is drawn.

    Attributes:
        bars: what is under way, a bar each.
        detail: what the last one waits for.
        label: the name of the curve.
        curve: its values so far.
        row: the metrics of the last step.
        title: stands in the border.
    """

    bars: Sequence[TimedProgress]
    detail: str = ""
    label: str = ""
    curve: Sequence[float] = ()
    row: Mapping[str, float] = field(default_factory=dict)
    title: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        inner = options.max_width - BORDER
        rows: list[Table | Text] = [_bars(self.bars) if self.bars else Text("starting", "dim")]
        if self.detail:
            rows.append(_line(Text(self.detail, "dim")))
        if self.curve:
            drawn = Text(sparkline(self.curve, inner - LABEL), "green")
            rows.append(_line(Text(f"{self.label:<{LABEL - 1}} ", "dim") + drawn))
        for label, found in cells(self.row).items():
            if text := fitting(found, inner - LABEL):
                style = "yellow" if label in ("failures", "lost") else ""
                rows.append(_line(Text(f"{label:<{LABEL}}", "dim") + Text(text, style)))
        yield Box(Group(*rows), title=Text(self.title) if self.title else None, title_align="left")


def _line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _bars(bars: Sequence[TimedProgress]) -> Table:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=3)
    table.add_column(ratio=2)
    table.add_column(no_wrap=True, justify="right")
    for bar in bars:
        table.add_row(bar.name, ProgressBar(bar.total or None, bar.done, pulse=not bar.total), str(bar))
    return table


def step_line(progress: TimedProgress, label: str, value: float, row: Mapping[str, float], width: int) -> str:
    """A step in one line, with as many of its metrics as fit."""
    left, found = progress.left(), cells(row)
    head = f"{progress.done:>5}/{progress.total}  {label} {value:.4f}"
    brief = chain(
        *(found["others"], found["lost"], found["failures"], found["time"][:1], found["speed"][:1]),
        *(found["sessions"], found["policy"]),
    )
    line = "  ".join(filter(None, (head, fitting(brief, width - len(head) - len(left) - 4))))
    return f"{line}  {left}".rstrip()


def fitting(cells: Iterable[str], width: int) -> str:
    """The cells beside each other, two spaces apart, without those for which there is no room."""
    text = ""
    for cell in cells:
        longer = f"{text}  {cell}" if text else cell
        text = longer if len(longer) <= width else text
    return text


def cells(row: Mapping[str, float]) -> dict[str, list[str]]:
    """Return a step's metrics as texts, by row of the panel, the most important first."""
    return {
        "others": list(_others(row)),
        "time": list(_time(row)),
        "speed": list(_speed(row)),
        "sessions": list(_sessions(row)),
        "policy": list(_policy(row)),
        "lost": list(_list_lost(row)),
        "failures": [f"{label} {share(number)}" for label, number in failures(row).items() if number],
    }


def _others(row: Mapping[str, float]) -> Iterator[str]:
    """The mean rewards of the policies that learn beside the main one."""
    for key, value in row.items():
        name, _, metric = key.partition("/")
        if metric == "reward/mean" and name not in METRICS:
            yield f"{name} {value:.4f}"


def failures(row: Mapping[str, float]) -> dict[str, float]:
    """Shares of a step's sessions that did not complete, by who or what ended them.

    Those with invalid rewards, or critic's views, have the status of sessions that the infrastructure failed.
    """
    found = {label: row.get(name, 0.0) for name, label in FAILURES.items()}
    count = max(row.get("sessions/count", 0.0), 1.0)
    odd = {label: row.get(f"count/{name}", 0.0) / count for name, label in INVALID_NUMBERS.items()}
    found[INFRA] = max(0.0, found[INFRA] - sum(odd.values()))
    if found[INFRA] < 1e-9:  # what rounding left
        found[INFRA] = 0.0
    return found | odd


def _time(row: Mapping[str, float]) -> Iterator[str]:
    step = row.get("time/step", 0.0)
    if step > 0:
        yield f"{short(step)} s/step"
        spent = {phase: row[f"time/{phase}"] / step for phase in PHASES if row.get(f"time/{phase}")}
        for phase in sorted(spent, key=lambda phase: -spent[phase]):
            yield f"{phase} {share(spent[phase])}"


def _speed(row: Mapping[str, float]) -> Iterator[str]:
    for name, unit in (("throughput/tokens_per_s", "tokens/s"), ("throughput/sessions_per_s", "sessions/s")):
        if name in row:
            yield f"{short(row[name])} {unit}"
    for name, label in (("time/idle_engine", "engine idle"), ("time/idle_trainer", "trainer idle")):
        if name in row:
            yield f"{label} {share(row[name])}"


def _sessions(row: Mapping[str, float]) -> Iterator[str]:
    if row.get("staleness/max"):
        yield f"staleness {short(row.get('staleness/mean', 0.0))} (at most {short(row['staleness/max'])})"
    for name, label in (("sessions/turns", "turns"), ("sessions/tokens", "tokens"), ("count/tool_calls", "tool calls")):
        if name in row:
            yield f"{label} {short(row[name])}"
    if row.get("stream/discarded_stale"):
        yield f"discarded as stale {short(row['stream/discarded_stale'])}"


def _policy(row: Mapping[str, float]) -> Iterator[str]:
    for name, label in (("policy/entropy", "entropy"), ("grad_norm", "grad norm"), ("mismatch/abs_max", "mismatch")):
        if name in row:
            yield f"{label} {short(row[name])}"
    if "policy/clip_fraction" in row:
        yield f"clipped {share(row['policy/clip_fraction'])}"


def _list_lost(row: Mapping[str, float]) -> Iterator[str]:
    found = lost_tokens.by_cause([row])
    if found:
        whole = f"{short(sum(found.values()))} of {short(row[lost_tokens.SAMPLED])} tokens"
        for number, (cause, count) in enumerate(found.items()):
            yield f"lost {whole}: {cause.words} {short(count)}" if not number else f"{cause.words} {short(count)}"


def share(value: float) -> str:
    """A share in per cent; one that is not 0 never reads 0%."""
    return "<1%" if 0 < value < 0.005 else f"{value:.0%}"


def short(value: float) -> str:
    """A number in three digits: 0.0123, 12.3, 1.23k, 12.3M, 1e-07."""
    value = float(f"{value:.3g}")
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def clock(seconds: float) -> str:
    """Return seconds as h:mm:ss, without hours where there are none."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def sparkline(values: Sequence[float], width: int, bounds: tuple[float, float] | None = None) -> str:
    """The values as a row of blocks, averaged down to `width`; with the first and last value beside it.

    `bounds` are the values of the lowest and the highest block; by default the least and the largest mean.
    """
    if not values:
        return ""
    cells = max(width - 16, 8)
    size = -(-len(values) // cells)
    means = [sum(part) / len(part) for part in (values[i : i + size] for i in range(0, len(values), size))]
    low, high = bounds or (min(means), max(means))
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return f"{values[0]:6.3f} {''.join(BLOCKS[round((v - low) * scale)] for v in means)} {values[-1]:.3f}"
