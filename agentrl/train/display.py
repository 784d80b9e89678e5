"""What a run shows while it runs: a live panel on a terminal, plain lines anywhere else.

The panel has a row for the phase (steps done, time, time left), one for the step's current part (sessions that have
ended, of how many), the phase's curve, and the latest metrics. Nothing in it is wider than the terminal. Other lines
may quote models, tools and logs, so they are printed without markup and escape sequences.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentrl import watchdog

BLOCKS = "▁▂▃▄▅▆▇█"
SHOWN = {
    "sessions/turns": "turns",
    "throughput/tokens_per_s": "tokens/s",
    "time/idle_engine": "engine idle",
    "time/idle_trainer": "trainer idle",
    "policy/entropy": "entropy",
    "grad_norm": "grad norm",
    "policy/clip_fraction": "clipped",
    "mismatch/abs_max": "mismatch",
    "time/rollout": "rollout s",
    "time/train": "train s",
}
SHARES = {"status/agent_error": "agent errors", "status/infra_error": "infra errors", "status/truncated": "truncated"}
"""Shares of a step's sessions, shown where they are not 0."""
PLAIN_WIDTH = 79
"""Characters of a step's line without a terminal."""
REPORT_INTERVALS = (10.0, 20.0, 30.0, 60.0)
"""Seconds between two progress lines without a terminal; the last is repeated."""


@dataclass
class Progress:
    """How many of a total are done, and since when."""

    name: str
    total: int
    done: int = 0
    unit: str = ""
    began: float = field(default_factory=time.monotonic)
    detail: Callable[[], str] = str
    """What there is to say beside it, as it is now."""

    def __post_init__(self) -> None:
        self._first = self.done

    def seconds_left(self) -> float:
        """Seconds left, at the rate so far; 0 where that is unknown."""
        if not self._first < self.done < self.total:
            return 0.0
        return (time.monotonic() - self.began) / (self.done - self._first) * (self.total - self.done)

    def left(self) -> str:
        """Time left, at the rate so far; '' where that is unknown."""
        return f"{clock(self.seconds_left())} left" if self._first < self.done < self.total else ""

    def __str__(self) -> str:
        count = f"{self.done}/{self.total} {self.unit}".strip() if self.total else ""
        return ", ".join(filter(None, (count, clock(time.monotonic() - self.began), self.left())))


class Display:
    """The progress of a run, phase by phase; use it as a context manager.

    Args:
        console: standard output by default.

    Attributes:
        resume_hint: returns the line that an interrupted run prints; set by the run.
        request_stop: asks the run to save and end; returns how many seconds that may take; set by the run.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self.resume_hint: Callable[[], str] = lambda: "interrupted"
        self.request_stop: Callable[[], float] = lambda: 0.0
        self._phase: Progress | None = None
        self._part: Progress | None = None
        self._curve: list[float] = []
        self._label = ""
        self._latest: Mapping[str, float] = {}
        self._live: Live | None = None
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, get_renderable=self._panel)

    def __enter__(self) -> Display:
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.__exit__(kind, error, trace)

    def say(self, text: str, style: str = "") -> None:
        """Print a line."""
        text = "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
        self.console.print(Text(text, style), soft_wrap=not self.console.is_terminal)

    def warn(self, text: str) -> None:
        """Print a warning."""
        self.say(f"warning: {text}", "yellow")

    def print_resume_hint(self) -> None:
        """Print how to resume an interrupted run; may be called from any thread."""
        if self._live:
            self._live.stop()
        self.say(self.resume_hint())

    def phase(self, name: str, total: int, label: str, done: int = 0) -> None:
        """A new phase of `total` steps begins; `label` names the metric of its curve."""
        self._phase = Progress(name, total, done)
        self._curve, self._latest, self._label = [], {}, label
        if not self._live:
            self.say(f"== {name}: {total - done} steps")

    def step(self, metrics: Mapping[str, float], curve: float) -> None:
        """A step is done; `curve` is the value of the phase's metric."""
        assert self._phase is not None
        self._phase.done += 1
        self._curve.append(curve)
        self._latest = metrics
        if not self._live:
            self.say(self._line(curve))

    def seconds_left(self) -> float:
        """Seconds until the phase's last step has ended, at the rate so far; 0 where that is unknown."""
        return self._phase.seconds_left() if self._phase else 0.0

    @contextmanager
    def part(
        self, name: str, total: int = 0, unit: str = "sessions", detail: Callable[[], str] = str
    ) -> Iterator[Callable[[object], None]]:
        """Show the progress of the block; call what is yielded with each of `total` that ends.

        `detail` says in a few words what it waits for.

        Without a terminal a line is printed now and then, also while none of them ends.
        """
        part = self._part = Progress(name, total, unit=unit, detail=detail)
        over = threading.Event()

        def report() -> None:
            beats = list(REPORT_INTERVALS)
            while not over.wait(beats.pop(0) if len(beats) > 1 else beats[0]):
                self.say(", ".join(filter(None, (f"   {name}: {part}", detail()))))

        if not self._live:
            threading.Thread(target=report, name="agentrl-display", daemon=True).start()

        def ended(one: object) -> None:
            watchdog.progress()
            part.done += 1

        watchdog.progress()
        try:
            yield ended
        finally:
            watchdog.progress()
            over.set()
            self._part = None

    def _line(self, curve: float) -> str:
        """A step in one line: with as many metrics as fit."""
        assert self._phase is not None
        left = self._phase.left()
        line = f"{self._phase.done:>5}/{self._phase.total}  {self._label} {curve:.4f}"
        for cell in [*self._cells(SHARES), *self._cells(SHOWN)]:
            if len(line) + len(cell) + len(left) + 4 <= PLAIN_WIDTH:
                line += f"  {cell}"
        return f"{line}  {left}".rstrip()

    def _cells(self, names: Mapping[str, str]) -> list[str]:
        """The latest metrics with their labels, of those that there are."""
        latest = self._latest
        if names is SHARES:
            return [f"{label} {latest[key]:.0%}" for key, label in names.items() if latest.get(key)]
        return [
            f"{label} {latest[key]:.0%}" if key.startswith("time/idle_") else f"{label} {latest[key]:.3g}"
            for key, label in names.items()
            if key in latest
        ]

    def _panel(self) -> Panel:
        counts = Table.grid(expand=True, padding=(0, 1))
        counts.add_column(no_wrap=True, overflow="ellipsis", ratio=3)
        counts.add_column(ratio=2)
        counts.add_column(no_wrap=True, justify="right")
        over = self._phase is not None and self._phase.done >= self._phase.total
        for count in (None if over and self._part else self._phase, self._part):
            if count is not None:
                bar = ProgressBar(count.total or None, count.done, pulse=not count.total)
                counts.add_row(count.name, bar, str(count))
        rows: list[Table | Text] = [counts if counts.row_count else Text("starting", "dim")]
        if self._part and (detail := self._part.detail()):
            rows.append(Text(detail, "dim", no_wrap=True, overflow="ellipsis"))
        if self._curve:
            curve = f"{self._label} {sparkline(self._curve, self.console.width - len(self._label) - 5)}"
            rows.append(Text(curve, style="green", no_wrap=True, overflow="ellipsis"))
        numbers = Table.grid(expand=True, padding=(0, 1))
        for _ in range(4):
            numbers.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        cells = [*self._cells(SHOWN), *self._cells(SHARES)]
        for place in range(0, len(cells), 4):
            numbers.add_row(*cells[place : place + 4])
        return Panel(Group(*rows, *([numbers] if cells else [])))


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss, without hours where there are none."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def sparkline(values: list[float], width: int) -> str:
    """The values as a row of blocks, averaged down to `width`; with the first and last value beside it."""
    if not values:
        return ""
    cells = max(width - 16, 8)
    size = -(-len(values) // cells)
    means = [sum(part) / len(part) for part in (values[i : i + size] for i in range(0, len(values), size))]
    low, high = min(means), max(means)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return f"{values[0]:6.3f} {''.join(BLOCKS[round((v - low) * scale)] for v in means)} {values[-1]:.3f}"
