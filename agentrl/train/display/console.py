"""A run's display while it runs: a live panel on a terminal (see `train.display.panel`), plain lines anywhere else.

Other lines may quote models, tools and logs, so they are printed without markup and escape sequences.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from agentrl import logs, watchdog
from agentrl.common.terminal import Output
from agentrl.common.untrusted import visible_text
from agentrl.config.secrets import scrub
from agentrl.errors import OutputClosed, OutputError
from agentrl.train.display.panel import Panel, TimedProgress, step_line
from agentrl.train.driver import interrupt

PLAIN_WIDTH = 79
"""Characters of a step's line without a terminal."""


class Display:
    """The progress of a run, phase by phase; use it as a context manager.

    Attributes:
        resume_hint: returns the line that an interrupted run prints; set by the run.
        request_stop: asks the run to save and end; returns how many seconds that may take; set by the run.
        report_intervals: seconds between two progress lines without a terminal; the last is repeated.
    """

    report_intervals: Sequence[float] = (10.0, 20.0, 30.0, 60.0)

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Output()
        self.resume_hint: Callable[[], str] = lambda: "interrupted"
        self.request_stop: Callable[[], float] = lambda: 0.0
        self._phase: TimedProgress | None = None
        self._part: TimedProgress | None = None
        self._curve: list[float] = []
        self._label = ""
        self._latest: Mapping[str, float] = {}
        self._warned: set[str] = set()
        self._live: Live | None = None
        self._unread = False
        if self.console.is_interactive and not os.environ.get("CI"):  # logs of CI may ask for colours
            self._live = Live(console=self.console, refresh_per_second=4, get_renderable=self.draw_panel)

    def __enter__(self) -> Display:
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.__exit__(kind, error, trace)

    def say(self, text: str) -> None:
        logs.shown.info(text)
        self._print(text)

    def _print(self, text: str, style: str = "") -> None:
        drawn = self._live is not None and self._live.is_started  # what is drawn below it counts its lines
        try:
            self.console.print(Text(visible_text(scrub(text)), style), soft_wrap=not drawn)
        except OutputError as error:
            self._lose_output(error)

    def _lose_output(self, error: OutputError) -> None:
        """End a command's run as SIGTERM does where nothing reads it any more; on a full disk it goes on.

        Raises:
            OutputClosed: nothing reads it, and the process is a script's.
        """
        logs.shown.warning(str(error))
        self._unread = isinstance(error, OutputClosed)
        self.console = Output(stderr=True, quiet=self._unread or self.console.stderr)
        if not self._unread:
            self.warn(f"{error}: the run goes on, and says so on standard error")
        elif not interrupt.end_as(signal.SIGPIPE):
            raise error

    def warn(self, text: str) -> None:
        logs.shown.warning(text)
        self._print(f"warning: {text}", "yellow")

    def warn_once(self, text: str) -> None:
        """Print a warning, unless it was printed before."""
        if text not in self._warned:
            self._warned.add(text)
            self.warn(text)

    def print_resume_hint(self) -> None:
        """Print how to resume an interrupted run; may be called from any thread."""
        if self._live:
            self._live.stop()
        if self._unread:
            self.console.quiet = False
        self.say(self.resume_hint())

    def phase(self, name: str, total: int, label: str, done: int = 0) -> None:
        """A new phase of `total` steps begins; `label` names the metric of its curve."""
        self._phase = TimedProgress(name, total, done)
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
            self.say(step_line(self._phase, self._label, curve, metrics, PLAIN_WIDTH))

    def seconds_left(self) -> float:
        """Return the seconds until the phase's last step has ended, at the rate so far; 0 where that is unknown."""
        return self._phase.seconds_left() if self._phase else 0.0

    @contextmanager
    def part(
        self, name: str, total: int = 0, unit: str = "sessions", detail: Callable[[], str] = str
    ) -> Iterator[Callable[[object], None]]:
        """Show the progress of the block; call what is yielded with each of `total` that ends.

        `detail` says in a few words what it waits for.

        Without a terminal a line is printed now and then, also while none of them ends.
        """
        part = self._part = TimedProgress(name, total, unit=unit, detail=detail)
        over = threading.Event()

        def report() -> None:
            beats = list(self.report_intervals)
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

    def draw_panel(self) -> Panel:
        """Return the panel as it is now."""
        over = self._phase is not None and self._phase.done >= self._phase.total
        bars = [bar for bar in (None if over and self._part else self._phase, self._part) if bar is not None]
        detail = self._part.detail() if self._part else ""
        return Panel(bars, detail, self._label, self._curve, self._latest)
