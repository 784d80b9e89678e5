"""Ten tasks of a user of the viewer, in Chromium, on a run that was trained for them: each has a bound on its actions.

An action is a click, a choice in a list, or a text or number that is typed (with Enter).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import pytest_asyncio

from agentrl.sessions.store.store import Store
from agentrl.train.record import trainer_logprobs
from agentrl.train.trackers.base import TrackedRun
from agentrl.train.trackers.prometheus import Prometheus
from agentrl.viewer.replay_process import Replays
from tests.test_prometheus import asked, read
from tests.viewer.conftest import viewing
from tests.viewer.recorded import write_run
from tests.viewer.trained import STEPS, train_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
REPLAY_SECONDS = 300
"""On a busy machine."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run, and one of another environment to compare it with."""
    folder = tmp_path_factory.mktemp("tasks")
    train_run(folder / "doors")
    write_run(folder / "other", steps=5, hostile=False)
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    replays = Replays()
    with viewing(folder, replays=replays) as found:
        yield found
    replays.close()


class User:
    """Counts what a person does."""

    def __init__(self, page: Any, address: str) -> None:
        self.page, self.address, self.actions = page, address, 0

    async def begins(self) -> None:
        """At the list of runs, where the viewer's printed address leads."""
        await self.page.goto("about:blank")
        await self.page.goto(f"{self.address}/")
        await self.page.wait_for_selector("main[data-shown]")
        self.actions = 0

    async def clicks(self, place: Any, **how: Any) -> None:
        self.actions += 1
        await place.click(**how)

    async def link(self, name: str) -> None:
        await self.clicks(self.page.get_by_role("link", name=name, exact=True).first)

    async def button(self, name: str) -> None:
        await self.clicks(self.page.get_by_role("button", name=name, exact=True).first)

    async def chooses(self, label: str, value: str) -> None:
        self.actions += 1
        await self.page.get_by_label(label, exact=True).first.select_option(value)

    async def types(self, label: str, text: str) -> None:
        self.actions += 1
        field = self.page.get_by_label(label, exact=True).first
        await field.fill(text)
        await field.press("Enter")


@pytest_asyncio.fixture(loop_scope="module")
async def user(page: Any, address: str) -> User:
    return User(page, address)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_user_does_ten_tasks_with_few_actions(user: User, folder: Path) -> None:
    """One browser for all: starting it costs more than most of the tasks."""
    needed = {}
    for task, most in TASKS.items():
        await user.begins()
        await task(user, folder / "doors")
        needed[task.__name__] = user.actions
        assert user.actions <= most, task.__doc__
    assert len(needed) == 10


async def find_the_worst_session_of_step_40_and_its_failing_tool_call(user: User, run: Path) -> None:
    """From the curve's point to its sessions, the lowest score first."""
    await user.link("doors")
    chart = user.page.locator('[data-chart="reward/mean"] svg')
    await chart.locator("polyline.line").wait_for()
    box = await chart.bounding_box()
    for right in range(2, 60, 2):  # until the tip says step 40, one before the last
        await chart.hover(position={"x": box["width"] - right, "y": box["height"] / 2})
        if re.search(r"\b40\b", (await user.page.locator('[data-chart="reward/mean"] .tip').inner_text())[:12]):
            break
    await user.clicks(chart, position={"x": box["width"] - right, "y": box["height"] / 2})
    await user.page.get_by_role("button", name="trained in step 40").wait_for()
    await user.button("Score")
    await user.page.wait_for_function("location.hash.includes('sort=score')")
    await user.page.locator("tbody tr").nth(2).wait_for()
    worst = user.page.locator("tbody a.name").first
    with Store(run / "sessions.db", read_only=True) as store:
        scores = {row.id: row.score for row in store.find({"group": "train-39.0"}).rows}
    assert scores[await worst.inner_text()] == min(scores.values()) == 0.0
    await user.clicks(worst)
    await user.page.locator(".message.tool").filter(has_text="is locked").first.wait_for()


async def compare_two_runs(user: User, run: Path) -> None:
    """Their curves over each other, and the settings that differ."""
    await user.clicks(user.page.get_by_label("Compare doors"))
    await user.clicks(user.page.get_by_label("Compare other"))
    await user.link("Compare 2 runs")
    await user.page.locator('[data-chart="reward/mean"] polyline.line').nth(1).wait_for()
    await user.page.locator("tr.differs").filter(has_text="algo.lr").wait_for()


async def find_where_two_siblings_part(user: User, run: Path) -> None:
    """The first message that differs between the sessions of a group is marked."""
    await user.link("doors")
    await user.link("Sessions")
    await user.clicks(
        user.page.get_by_role("row").filter(has_text="train-5.0-").get_by_role("link", name="group").first
    )
    await user.page.locator(".parts").nth(1).wait_for()
    assert await user.page.locator(".together > section").count() == 3


async def replay_a_turn(user: User, run: Path) -> None:
    """Its recorded seeds reproduce it; another seed is a branch beside it."""
    await user.link("doors")
    await user.link("Sessions")
    await user.chooses("phase", "train")
    await user.types("Steps from", str(STEPS - 1))
    await user.clicks(user.page.get_by_role("link", name=re.compile(r"^train-40\.0-\d$")).first)
    await user.button("Replay turn 1")
    await user.clicks(user.page.get_by_label("run the code that its settings name"))
    await user.types("Replays", "2")  # Enter starts them
    done = user.page.locator(".progress .badge").filter(has_not_text="under way")
    await done.wait_for(timeout=1000 * REPLAY_SECONDS)
    said = await user.page.locator(".progress").inner_text()
    assert (await done.inner_text()) == "done", said
    assert "version 50 is step-000040's" in said
    await user.page.get_by_role("button", name="the recorded session again, bit for bit").first.wait_for()
    await user.page.get_by_role("treeitem").filter(has_text="replay, seed").first.wait_for()


async def export_a_curve(user: User, run: Path) -> None:
    """As CSV, all of its points."""
    await user.link("doors")
    chart = user.page.locator('[data-chart="loss"]')
    await chart.hover()
    async with user.page.expect_download() as saved:
        await user.clicks(chart.get_by_role("button", name="CSV"))
    assert len((await (await saved.value).path()).read_text().splitlines()) == 1 + STEPS


async def learn_what_is_wrong_and_see_the_sessions_that_show_it(user: User, run: Path) -> None:
    """Every tool call fails: an alarm says so."""
    await user.link("doors")
    await user.link("Health")
    alarm = user.page.locator(".finding").filter(has_text="Most tool calls fail")
    await user.clicks(alarm.get_by_role("link", name="The sessions that show it"))
    await user.page.locator("tbody tr").first.wait_for()
    assert "tool_errors=1.." in user.page.url


async def see_how_engine_and_trainer_differ_on_each_token_of_a_turn(user: User, run: Path) -> None:
    """And with what ratio the step trained it."""
    await user.link("doors")
    await user.link("Sessions")
    await user.link("train-7.0-0")
    await user.button("Tokens of message 1")
    await user.chooses("Colour by", "difference")
    note = await user.page.locator(".tokens .head").inner_text()
    assert float(re.search(r"at most ([\d.e-]+) nats", note)[1]) < 1e-3  # type: ignore[index]
    await user.page.locator(".token").last.hover()
    assert re.search(r"ratio (1|0\.999\d*|1\.000\d*), difference", await user.page.locator(".facts-line").inner_text())


async def tag_a_session_and_find_it_again(user: User, run: Path) -> None:
    """The tag is a filter of the list."""
    await user.link("doors")
    await user.link("Sessions")
    await user.link("train-3.0-1")
    await user.types("Add a tag", "<b>odd</b>")
    await user.page.get_by_role("button", name="Remove the tag <b>odd</b>").wait_for()
    await user.link("Sessions")
    await user.chooses("tag", "<b>odd</b>")
    await user.page.get_by_text("1 session", exact=True).wait_for()
    assert await user.page.locator("tbody a.name").all_inner_texts() == ["train-3.0-1"]


async def find_sessions_by_a_text(user: User, run: Path) -> None:
    """Among what tools answered."""
    await user.link("doors")
    await user.link("Sessions")
    await user.types("Text in messages", "door 1 IS locked")
    await user.page.get_by_text(re.compile(r"^\d+ found in \d+ sessions$")).wait_for()
    await user.clicks(user.page.locator("tbody a.name").first)
    await user.page.locator(".message.tool").filter(has_text="door 1 is locked").first.wait_for()


async def see_what_went_on_at_a_time_and_open_a_session_of_it(user: User, run: Path) -> None:
    """From the timeline."""
    await user.link("doors")
    await user.link("Timeline")
    await user.clicks(user.page.locator('[data-step="12"] rect').first)
    await user.page.get_by_text(re.compile(r" to .+ of .+ since ")).wait_for()  # it is drawn anew
    await user.clicks(user.page.locator('a[data-row="train-11.0-1"]'), force=True)
    await user.page.get_by_role("heading", name="train-11.0-1").wait_for()


TASKS = {
    find_the_worst_session_of_step_40_and_its_failing_tool_call: 4,
    compare_two_runs: 3,
    find_where_two_siblings_part: 3,
    replay_a_turn: 8,
    export_a_curve: 2,
    learn_what_is_wrong_and_see_the_sessions_that_show_it: 3,
    see_how_engine_and_trainer_differ_on_each_token_of_a_turn: 5,
    tag_a_session_and_find_it_again: 6,
    find_sessions_by_a_text: 4,
    see_what_went_on_at_a_time_and_open_a_session_of_it: 4,
}
"""The tasks of a user and how many actions each may take."""


def test_the_recorded_log_probabilities_of_a_step_are_those_of_its_mismatch(folder: Path) -> None:
    run = folder / "doors"
    rows = [orjson.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    with Store(run / "sessions.db", read_only=True) as store:
        for row in rows[::10]:
            gaps = []
            for session in store.sessions(group=f"train-{row['step'] - 1}.0"):
                for node in session.nodes:
                    found = trainer_logprobs.last_of(run, session.id, node.id)
                    assert (found is not None) == any(node.trainable)
                    if found is not None:
                        assert (found.step, found.version) == (row["step"], node.versions[0].version)
                        pairs = zip(found.logprobs, node.logprobs, node.trainable, strict=True)
                        gaps += [abs(one - other) for one, other, trained in pairs if trained]
            assert 0 <= max(gaps) < 1e-3
            assert row["time/logprobs"] > 0


def test_the_dashboard_asks_of_a_run_only_for_what_prometheus_scrapes_from_it(folder: Path) -> None:
    tracker = Prometheus(TrackedRun(folder / "doors"))
    row = orjson.loads((folder / "doors" / "metrics.jsonl").read_bytes().splitlines()[-1])
    tracker.log(row.pop("step"), row)
    scraped = read(httpx.get(f"http://127.0.0.1:{tracker.port}/metrics", timeout=60).text)
    tracker.close()
    assert {name for name, of_run in asked().items() if of_run} <= scraped.keys()
