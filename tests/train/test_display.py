"""The display: nothing is wider than the terminal, plain lines elsewhere, and what others wrote is only text."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from agentrl.train.display.console import Display
from agentrl.train.display.panel import TimedProgress, clock, short
from agentrl.train.display.pictures import learning_curve

METRICS = {
    "sessions/turns": 12.345,
    "policy/entropy": 1.23456,
    "policy/clip_fraction": 0.012345,
    "grad_norm": 12345.6,
    "mismatch/abs_max": 1.2e-7,
    "throughput/tokens_per_s": 123456.7,
    "time/rollout": 1234.5,
    "time/train": 0.5,
    "time/step": 1235.0,
    "staleness/mean": 0.5,
    "staleness/max": 2.0,
    "status/agent_error": 0.25,
    "status/infra_error": 0.125,
}


@pytest.fixture(autouse=True)
def outside_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Displays are live on a terminal, also where these tests run in CI."""
    monkeypatch.delenv("CI", raising=False)


def shown(width: int, *, terminal: bool) -> tuple[Display, StringIO]:
    file = StringIO()
    return Display(Console(file=file, force_terminal=terminal, width=width)), file


WIDTHS = st.integers(60, 200)
NUMBERS = st.one_of(st.just(0.0), st.floats(1e-12, 1e12), st.floats(-1e12, -1e-12))


@given(width=WIDTHS, values=st.lists(NUMBERS, min_size=len(METRICS), max_size=len(METRICS)), steps=st.integers(0, 300))
@settings(max_examples=30, deadline=None)
def test_the_panel_is_as_wide_as_the_terminal_and_no_row_of_it_wraps(
    width: int, values: list[float], steps: int
) -> None:
    display, file = shown(width, terminal=True)
    display.phase("warm start: imitating demonstrations of a long name", 1000, "reward")
    for step in range(steps):
        display.step(dict(zip(METRICS, values, strict=True)), values[step % len(values)])
    with display.part("evaluation before training", 128) as ended:
        ended(None)
        display.console.print(display.draw_panel())
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in file.getvalue().splitlines()]
    assert {len(line) for line in lines} == {width}
    labels = [line[2:12].strip() for line in lines[3:-1]]
    assert len(labels) == len(set(labels)), "a row went on in the next line"
    assert set(labels) <= {"reward", "time", "speed", "sessions", "policy", "failures"}
    assert "1/128 sessions" in lines[2]


@pytest.mark.parametrize(("width", "seen"), [(60, 3), (80, 4), (200, 4)])
def test_the_panel_shows_what_a_step_took_how_fast_it_was_and_what_failed(width: int, seen: int) -> None:
    display, file = shown(width, terminal=True)
    display.phase("reinforcement learning", 1000, "reward")
    for step in range(30):
        display.step(METRICS, step / 30)
    display.console.print(display.draw_panel())
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    assert re.search(r"30/1000, 0:0\d, 0:\d\d left", text)
    assert re.search(r"reward +0\.000 ▁+.*█ 0\.967", text)
    assert re.search(r"time +1\.24k s/step  rollout 100%  train <1%", text)
    assert re.search(r"speed +123k tokens/s", text)
    assert re.search(r"sessions +staleness 0\.5 \(at most 2\)  turns 12\.3", text)
    assert re.search(r"failures +infra errors 12%  agent errors 25%", text)
    policy = next(line for line in text.splitlines() if "policy" in line)
    assert sum(name in policy for name in ("entropy", "grad norm", "mismatch", "clipped")) == seen


def test_without_a_terminal_each_step_is_one_short_line_with_the_time_left() -> None:
    display, file = shown(80, terminal=False)
    with display:
        display.phase("reinforcement learning", 100, "reward")
        display.step(METRICS, 0.5)
        display.say("x" * 300)
    head, step, long = file.getvalue().splitlines()
    assert head == "== reinforcement learning: 100 steps"
    assert step.startswith("    1/100  reward 0.5000  infra errors 12%  agent errors 25%")
    assert step.endswith("left")
    assert len(step) < 80
    assert long == "x" * 300


def test_a_steps_line_has_the_rewards_of_the_other_policies_that_learn() -> None:
    display, file = shown(120, terminal=False)
    with display:
        display.phase("reinforcement learning", 100, "reward")
        display.step({"reward/mean": 0.5, "rival/reward/mean": 0.25, "rival/loss": 1.0, "eval/reward/mean": 0.1}, 0.5)
    assert file.getvalue().splitlines()[1].startswith("    1/100  reward 0.5000  rival 0.2500")
    assert "eval" not in file.getvalue()


def test_in_ci_lines_are_plain_also_where_colours_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    file = StringIO()
    with Display(Console(file=file, force_terminal=True, color_system=None)) as display:
        display.phase("reinforcement learning", 100, "reward")
        display.step(METRICS, 0.5)
    assert [line.split()[0] for line in file.getvalue().splitlines()] == ["==", "1/100"]


@given(value=NUMBERS)
def test_a_short_number_has_three_digits_and_is_right_to_them(value: float) -> None:
    text = short(value)
    assert len(text) <= 9
    units = {"k": 1e3, "M": 1e6, "G": 1e9}
    read = float(text.rstrip("kMG")) * units.get(text[-1], 1.0)
    assert read == pytest.approx(value, rel=5.1e-3)


def test_without_a_terminal_something_long_says_now_and_then_how_far_it_is() -> None:
    display, file = shown(80, terminal=False)
    display.report_intervals = (0.01, 0.01)
    with display.part("evaluation", 8) as ended:
        ended(None)
        while file.getvalue().count("\n") < 2:
            pass
    assert file.getvalue().splitlines()[1].startswith("   evaluation: 1/8 sessions, 0:0")


def test_what_a_part_waits_for_and_who_was_idle_stand_beside_the_numbers() -> None:
    display, file = shown(80, terminal=True)
    display.phase("reinforcement learning", 100, "reward")
    display.step({"time/idle_engine": 0.256, "time/idle_trainer": 0.5}, 0.5)
    assert display.seconds_left() > 0
    with display.part("rollout", 8, detail=lambda: "12 at work, 4 waiting, oldest 31 s"):
        display.console.print(display.draw_panel())
    text = file.getvalue()
    assert "engine idle 26%" in text
    assert "trainer idle 50%" in text
    assert "12 at work, 4 waiting, oldest 31 s" in text


def test_what_others_wrote_is_text_and_neither_markup_nor_escapes() -> None:
    display, file = shown(80, terminal=False)
    display.warn("[/red] [bold]no[/] \x1b[2J\x07")
    assert file.getvalue() == "warning: [/red] [bold]no[/] \\x1b[2J\\x07\n"


def test_time_left_goes_by_what_was_done_since_it_began() -> None:
    count = TimedProgress("steps", total=100, done=40)
    assert count.left() == ""
    count.began -= 100
    count.done = 50
    assert re.fullmatch(r"8:2\d left", count.left())
    count.done = 100
    assert count.left() == ""
    assert [clock(s) for s in (0, 61, 3661)] == ["0:00", "1:01", "1:01:01"]


def test_an_interrupted_run_says_how_to_go_on_in_a_line_to_copy_whole() -> None:
    """A terminal narrower than the command got it in two lines."""
    display, file = shown(80, terminal=True)
    command = f"agentrl train resume=runs/{'x' * 100}"
    display.resume_hint = lambda: f"go on with: {command}"
    with display:
        display.print_resume_hint()
    assert command in file.getvalue()


@pytest.mark.slow
def test_a_learning_curve_leaves_out_steps_without_a_reward(tmp_path: Path) -> None:
    """It died of a KeyError at the end of a run in which every session of a step had failed."""
    rows = [{"step": 1.0}, {"step": 2.0, "reward/mean": 0.5}]
    learning_curve(tmp_path / "curve.png", rows, "t", {})
    learning_curve(tmp_path / "empty.png", rows[:1], "t", {})
    assert (tmp_path / "curve.png").stat().st_size > 5000
    assert (tmp_path / "empty.png").exists()
