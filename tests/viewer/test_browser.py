"""The viewer in a real browser, as a person uses it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import orjson
import pytest

import agentrl
from agentrl.rollout.episodes import edits
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.train.driver.warmstart import note_times
from agentrl.train.record.files import append
from agentrl.types import FunctionCall, Message, Session, Status, Task, ToolCall
from agentrl.viewer.replay_process import Replays
from tests.conftest import need
from tests.viewer.conftest import viewed
from tests.viewer.recorded import BEGAN, HOSTILE, spoken, with_demonstrations, write_long, write_run, write_several

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""A PNG of one pixel."""
VIEWS = (
    "#/",
    "#/run/first",
    "#/run/first/sessions",
    "#/run/first/timeline",
    "#/run/first/health",
    "#/run/first/settings",
    "#/run/first/session/forked-0.0-0",
    "#/run/first/session/train-5.0-0",
    "#/run/first/group/train-30.0",
    "#/compare?run=first&run=below%2Fslow",
    "#/compare?run=first&run=below%2Fslow&task=task%205",
)


async def opened(page: Any, url: str, view: str) -> None:
    await page.goto(f"{url}/{view}")
    await page.wait_for_selector("main[data-shown]")


async def opened_whole(page: Any, url: str, view: str) -> None:
    """With the form of a replay and the tokens of a turn, where there are any."""
    await opened(page, url, view)
    for name in ("Replay turn 1", "Tokens of message 3"):
        if await page.get_by_role("button", name=name).count():
            await page.get_by_role("button", name=name).first.click()


async def saved_bytes(saved: Any) -> bytes:
    path = await (await saved.value).path()
    return await asyncio.to_thread(path.read_bytes)


async def test_two_runs_are_chosen_compared_and_exported(page: Any, url: str) -> None:
    await opened(page, url, "#/")
    for name in ("first", "below/slow"):
        await page.get_by_label(f"Compare {name}").check()
    await page.get_by_role("link", name="Compare 2 runs").click()
    chart = page.locator('[data-chart="reward/mean"]')
    await chart.locator("polyline.line").nth(1).wait_for()
    assert await page.locator("tr.differs").all_inner_texts() == ["algo.lr\t0.001\t0.0004"]
    await chart.locator("svg").hover()
    tip = await chart.locator(".tip").inner_text()
    assert "first" in tip
    assert "below/slow" in tip
    async with page.expect_download() as saved:
        await chart.get_by_role("button", name="CSV").click()
    assert len((await saved_bytes(saved)).splitlines()) == 1 + 2 * 30
    async with page.expect_download() as saved:
        await chart.get_by_role("button", name="PNG").click()
    assert (await saved_bytes(saved))[:8] == b"\x89PNG\r\n\x1a\n"


async def test_two_evaluations_show_the_tasks_that_changed_and_their_sessions_beside_each_other(
    page: Any, tmp_path: Path
) -> None:
    for policy in ("expert", "noop"):
        settings = {"policy": policy, "eval": {"tasks": 2, "n": 2}, "run_dir": str(tmp_path / policy)}
        await asyncio.to_thread(agentrl.evaluate, "calculator", **settings)
    async with viewed(page, tmp_path) as url:
        await opened(page, url, "#/compare?run=expert&run=noop")
        rows = page.locator("tr", has=page.locator("[data-row]"))
        assert await rows.count() == 2
        name, *numbers = (await rows.first.inner_text()).split()
        assert numbers == ["1", "0", "-1"]
        await rows.first.get_by_role("link").click()
        await page.locator("main[data-shown] .together").wait_for()
        columns = await page.locator(".together > section h2 a").all_inner_texts()
        assert columns == ["expert, sample 0", "noop, sample 0", "expert, sample 1", "noop, sample 1"]
        assert name in await page.locator("h1").inner_text()
        assert await page.locator(".parts").count() == 2, "the expert's first calls; the other says nothing"
        await page.locator(".together > section h2 a").nth(1).click()
        await page.wait_for_url("**/#/run/noop/session/*")


async def test_an_evaluation_opens_on_its_result_and_its_sessions(page: Any, tmp_path: Path) -> None:
    settings = {"policy": "expert", "eval": {"tasks": 2}, "run_dir": str(tmp_path / "measured")}
    await asyncio.to_thread(agentrl.evaluate, "calculator", **settings)
    async with viewed(page, tmp_path) as url:
        await opened(page, url, "#/")
        await page.get_by_role("link", name="measured").click()
        await page.get_by_role("heading", name="Result").wait_for()
        assert "expert" in await page.locator(".results").inner_text()
        assert await page.locator("tr [data-row]").count() == 2
        assert await page.locator(".tab[aria-current]").inner_text() == "Sessions"


async def test_a_score_is_changed_in_a_form_that_names_who_and_why_and_shows_what_was_measured(
    page: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "evaluation"
    await asyncio.to_thread(
        agentrl.evaluate, "calculator", policy="expert", eval={"tasks": 2, "n": 1}, run_dir=str(folder)
    )
    with Store(folder / "sessions.db", read_only=True) as store:
        name = store.ids()[0]
    with contextlib.closing(Replays()) as replays:
        async with viewed(page, folder, replays=replays) as url:
            await opened(page, url, f"#/run/evaluation/session/{name}")
            form = page.get_by_role("form", name="Edit the score")
            await form.get_by_label("New score").fill("0.25")
            await form.get_by_label("Reason").fill("guessed")
            await form.get_by_role("button", name="Save").click()
            assert await form.get_by_label("Your name").evaluate("each => each.validity.valueMissing")
            await form.get_by_label("Your name").fill("Ann")
            await form.get_by_role("button", name="Save").click()
            await page.get_by_text("(measured 1)").first.wait_for()
        async with viewed(page, folder) as url:
            await opened(page, url, f"#/run/evaluation/session/{name}")
            assert await page.get_by_role("form", name="Edit the score").count() == 0
    assert [(edit.session, edit.score, edit.was, edit.who) for edit in edits.read(folder)] == [(name, 0.25, 1.0, "Ann")]


async def test_curves_appear_with_a_runs_first_step_without_a_reload(page: Any, tmp_path: Path) -> None:
    metrics = write_run(tmp_path / "run", steps=2, hostile=False) / "metrics.jsonl"
    rows = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"")
    (tmp_path / "run" / "model").mkdir()
    async with viewed(page, tmp_path) as url:
        await opened(page, url, "#/run/run")
        await page.get_by_text("No step is done yet.").wait_for()
        append(metrics, rows[0])
        await page.locator('[data-chart="reward/mean"]').wait_for()
        assert not await page.get_by_text("No step is done yet.").is_visible()
        append(metrics, orjson.dumps({**orjson.loads(rows[1]), "eval/mean": 0.5}) + b"\n")
        await page.locator('[data-chart="eval/mean"]').wait_for()


async def test_a_link_restores_smoothing_scale_axis_and_open_sections(page: Any, url: str) -> None:
    await opened(page, url, "#/run/first")
    await page.get_by_label("Smoothing").fill("0.8")
    await page.get_by_label("log scale").check()
    await page.get_by_label("Horizontal axis").select_option("hours")
    await page.get_by_text("Time and throughput").click()
    await page.wait_for_url("**open=Time+and+throughput")
    address, other = page.url, await page.context.new_page()
    await other.goto(address)
    await other.wait_for_selector("main[data-shown]")
    assert await other.get_by_label("Smoothing").input_value() == "0.8"
    assert await other.get_by_label("log scale").is_checked()
    assert await other.get_by_label("Horizontal axis").input_value() == "hours"
    await other.locator('[data-chart="time/step"] polyline').first.wait_for(state="attached")
    assert await other.locator("polyline.faint").count() > 0


async def test_a_view_that_is_being_left_does_not_take_the_address_back(page: Any, url: str) -> None:
    """A section tells that it was opened after the click that opened it: another view may have been chosen by then."""
    await opened(page, url, "#/run/first")
    await page.evaluate(
        "() => { location.hash = '#/run/first/timeline';"
        " document.querySelector('details').dispatchEvent(new Event('toggle')); }"
    )
    await page.get_by_role("heading", name="Timeline").wait_for()
    assert page.url.endswith("#/run/first/timeline")


async def test_from_a_point_of_a_curve_to_its_sessions_to_the_tokens_of_a_turn(page: Any, url: str) -> None:
    await opened(page, url, "#/run/first")
    chart = page.locator('[data-chart="reward/mean"] svg')
    await chart.focus()
    for _ in range(3):
        await page.keyboard.press("ArrowLeft")
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="trained in step 28").wait_for()
    await page.get_by_text("8 sessions", exact=True).wait_for()
    await page.get_by_role("link", name="train-54.0-0").click()
    card = page.locator('[data-message="1"]')
    await card.get_by_text("calculator").wait_for()
    assert await card.get_by_text("I need the product.").is_hidden()
    await card.get_by_text("Reasoning").click()
    assert await card.get_by_text("I need the product.").is_visible()
    await card.get_by_role("button", name="Tokens of message 1").click()
    await card.locator(".token").nth(3).hover()
    facts = await card.locator(".facts-line").inner_text()
    assert re.search(r"token 6 of its path · id 11 · log p -.* · trained · version 27", facts)
    assert re.search(r"in step 28 on version 27, advantage -?[\d.]+ of weight 0.25", await card.inner_text())
    await card.get_by_label("Colour by").select_option("advantage")
    assert "colour=advantage" in page.url


async def test_a_forked_session_is_drawn_as_a_tree_whose_paths_are_read_one_by_one(page: Any, url: str) -> None:
    await opened(page, url, "#/run/first/session/forked-0.0-0")
    assert await page.get_by_role("treeitem").count() == 10
    await page.get_by_text("I open it with the key.").last.wait_for()
    narrowed = page.locator('[data-message="3"]')
    await narrowed.get_by_role("button", name="Tokens of message 3").click()
    for place, words in (
        (2, "· trained · drawn from 2 of 64 tokens"),
        (6, "· not trained: by rounding, it is outside"),
    ):
        await narrowed.locator(".token").nth(place).hover()
        assert words in await narrowed.locator(".facts-line").inner_text()
    await narrowed.get_by_label("Colour by").select_option("trained")
    assert "1 (what was left of the vocabulary takes more bytes than" in await narrowed.inner_text()
    await narrowed.get_by_label("Colour by").select_option("logp")
    await page.get_by_role("treeitem").filter(has_text="I light lamp 0.").click()
    shown = page.locator(".message")
    await shown.filter(has_text="I light lamp 0.").wait_for()
    assert await shown.count() == 6
    assert await shown.filter(has_text="I open it with the key.").count() == 0
    assert "node=6" in page.url


async def test_sessions_are_filtered_searched_and_sorted(page: Any, url: str) -> None:
    await opened(page, url, "#/run/first/sessions")
    await page.get_by_label("status").select_option("truncated")
    await page.locator("tbody .badge.truncated").nth(5).wait_for()
    assert await page.locator("tbody .badge:not(.truncated)").count() == 0
    await page.get_by_label("status").select_option("")
    await page.keyboard.press("Escape")
    await page.keyboard.press("/")
    await page.keyboard.type("lamp 1")
    await page.keyboard.press("Enter")
    await page.get_by_text("1 found in 242 sessions").wait_for()
    await page.get_by_role("link", name="forked-0.0-0").wait_for()
    await page.get_by_label("Text in messages").fill("")
    await page.keyboard.press("Enter")
    await page.get_by_label("tool", exact=True).select_option(HOSTILE[:100])
    await page.get_by_text("1 session", exact=True).wait_for()
    await page.get_by_label("tool", exact=True).select_option("calculator")
    await page.get_by_text("240 sessions", exact=True).wait_for()
    await page.get_by_label("Condition").fill("data.a >= 0 and step >= 28")
    await page.keyboard.press("Enter")
    await page.get_by_text("16 sessions", exact=True).wait_for()
    await page.get_by_role("button", name="Step").click()
    await page.get_by_role("button", name="Step ▲").click()
    await page.locator("tbody tr").filter(has_text="train-58.0-0").wait_for()
    assert "sort=step&descending=1" in page.url


async def test_demonstrations_are_a_filter_of_the_sessions_and_their_imitation_is_on_the_timeline(
    page: Any, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", steps=2, hostile=False)
    with_demonstrations(run)
    note_times(run, BEGAN - 60, BEGAN - 10)
    async with viewed(page, tmp_path) as url:
        await opened(page, url, "#/run/run/sessions")
        await page.get_by_text("17 sessions", exact=True).wait_for()
        assert await page.get_by_role("link", name="demo-").count() == 0
        assert await page.get_by_label("phase").locator("option:checked").text_content() == "no demonstrations"
        await page.get_by_label("phase").select_option("demo")
        await page.get_by_text("3 sessions", exact=True).wait_for()
        await page.get_by_label("phase").select_option("any phase")
        await page.get_by_text("20 sessions", exact=True).wait_for()
        await opened(page, url, "#/run/run/timeline")
        assert await page.locator("svg.timeline title", has_text="trainer, warm start: 50.0 s").count() == 1


async def test_policies_have_colours_in_curves_and_sessions_and_a_table_of_who_played_whom(
    page: Any, tmp_path: Path
) -> None:
    write_several(tmp_path / "several")
    async with viewed(page, tmp_path) as url:
        await opened(page, url, "#/run/several")
        legend = page.locator(".legend .policy")
        assert await legend.all_inner_texts() == ["main", "rival"]
        chart = page.locator('[data-chart="reward/mean"]')
        described = await chart.locator("svg").get_attribute("aria-label")
        assert "main: " in described
        assert "rival: 0.25" in described
        assert not await page.locator('[data-chart="rival/reward/mean"]').count()
        await opened(page, url, "#/run/several/sessions")
        table = page.locator(".players")
        await table.wait_for()
        assert await table.locator("tbody th").all_inner_texts() == ["main", "rival", "past/1"]
        assert (await table.locator("tbody td").all_inner_texts())[1].split() == ["0.75", "2", "sessions"]
        row = page.locator("table.sessions tr", has_text="match-0")
        assert await row.locator(".policy").all_inner_texts() == ["main", "rival"]
        colour = "all => all.map(each => getComputedStyle(each).{})"
        squares = await table.locator("tbody th i").evaluate_all(colour.format("backgroundColor"))
        assert len({*squares}) == 3
        await opened(page, url, "#/run/several/session/match-0")
        assert await page.locator(".message header .policy").all_inner_texts() == ["rival"]
        marks = await page.locator(".node.assistant .mark").evaluate_all(colour.format("color"))
        assert marks == squares[:2]


async def test_a_root_beside_the_task_is_marked_in_the_tree_and_in_its_conversation(page: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=1, hostile=False)
    session = Session("titled", Task(id="t"), phase="train", status=Status.COMPLETED, started=BEGAN, reward=1.0)
    for place, text in enumerate(("make a title", "add numbers")):
        root = tree.add(session, None, Message(role="user", content=text), [place])
        spoken(session, root, Message(role="assistant", content="well"), 0)
    session.excluded = [0]
    with Store(run / "sessions.db") as store:
        store.save(session)
    async with viewed(page, tmp_path) as url:
        await opened(page, url, "#/run/run/session/titled")
        rows = page.locator("[data-node]")
        await rows.nth(3).wait_for()
        assert ["no credit" in await rows.nth(place).inner_text() for place in range(4)] == [True, False, False, False]
        for node, marked in ((1, 1), (3, 0)):
            await page.locator(f'[data-node="{node}"]').click()
            card = page.locator(f'[data-message="{node}"]')
            await card.wait_for()
            assert await page.get_by_text("beside the task: no credit").count() == marked
            assert ("not trained" in await card.inner_text()) == bool(marked)


async def test_a_timeline_has_lanes_for_the_trainer_each_engine_and_the_environments(page: Any, url: str) -> None:
    await opened(page, url, "#/run/first/timeline?from=60&to=80")
    shown = await page.locator("svg.timeline text.lane").all_text_contents()
    assert shown == ["Steps", "Trainer", "Published", "engine-0", "engine-1", "environments", "Under way", "Sessions"]
    for lane in ("engine-0: requests", "engine-1: requests", "environments: calls", "sessions"):
        points = await page.locator(f'[data-lane="{lane} under way"]').get_attribute("points")
        assert len({point.split(",")[1] for point in points.split()}) > 1, f"{lane} has no course"


async def test_a_line_of_fifty_megabytes_is_cut_on_the_page_and_its_end_is_said(page: Any, tmp_path: Path) -> None:
    run = write_long(tmp_path / "wide", nodes=0)
    line = Session("line", Task(id="line"), status=Status.COMPLETED)
    tree.add(line, None, Message(role="user", content="y" * 50_000_000), [1])
    with Store(run / "sessions.db") as store:
        store.save(line)
    async with viewed(page, tmp_path) as url:
        await opened(page, url, "#/run/wide/session/line")
        message = page.locator('[data-message="0"]')
        await message.get_by_role("button", name="more characters").click()
        assert "49,900,000 more characters" in await message.inner_text()


async def test_an_image_in_a_session_is_shown_and_one_elsewhere_is_not_asked_for(page: Any, tmp_path: Path) -> None:
    run, asked = write_long(tmp_path / "seen", nodes=0), list[str]()
    urls = [
        f"data:image/png;base64,{DOT}",
        "https://elsewhere.example/a.png",
        "data:image/svg+xml,<svg onload=alert(1)>",
    ]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    session = Session("image", Task(id="image"), status=Status.COMPLETED)
    tree.add(session, None, Message.model_validate({"role": "user", "content": parts}), [1])
    with Store(run / "sessions.db") as store:
        store.save(session)
    page.on("request", lambda request: asked.append(request.url))
    async with viewed(page, tmp_path) as url:
        await opened(page, url, "#/run/seen/session/image")
        message = page.locator('[data-message="0"]')
        await message.locator("img").evaluate("image => image.decode()")
        assert await message.locator("img").evaluate_all("all => all.map(each => each.naturalWidth)") == [1]
        assert await message.locator("code").all_inner_texts() == [f"image at {url}" for url in urls[1:]]
    assert not any("elsewhere" in each for each in asked)


async def test_a_patch_and_code_in_a_calls_arguments_are_shown_as_such(page: Any, tmp_path: Path) -> None:
    run, patch = write_long(tmp_path / "seen", nodes=0), "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-old = 1\n+new = 2\n"
    arguments = orjson.dumps({"patch": patch, "test": "def check():\n    return 3  # three\n"}).decode()
    call = ToolCall(id="1", function=FunctionCall(name="apply", arguments=arguments))
    session = Session("patch", Task(id="patch"), status=Status.COMPLETED)
    tree.add(session, None, Message(role="assistant", tool_calls=[call]), [1])
    with Store(run / "sessions.db") as store:
        store.save(session)
    async with viewed(page, tmp_path) as url:
        await opened(page, url, "#/run/seen/session/patch")
        shown = page.locator('[data-message="0"]')
        assert await shown.locator(".diff .added").all_inner_texts() == ["+new = 2\n"]
        assert await shown.locator(".code .code-word").all_inner_texts() == ["def", "return"]
        assert await shown.locator(".code .code-comment").all_inner_texts() == ["# three"]


async def test_of_a_session_of_ten_thousand_turns_only_what_is_looked_at_is_loaded(page: Any, tmp_path: Path) -> None:
    write_long(tmp_path / "long", nodes=10_000)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    async with viewed(page, tmp_path) as url:
        await opened(page, url, "#/run/long/session/long?node=9000")
        await page.locator('[data-message="9000"].chosen').wait_for()
        assert sum("/api/messages" in address for address in asked) <= 4
        assert await page.get_by_role("treeitem").count() < 200
        await page.get_by_role("button", name="8980 earlier messages").click()
        await page.locator('[data-message="8979"]').wait_for()
        await opened(page, url, "#/run/long/session/long")
        await page.locator('[data-message="0"]').wait_for()


async def test_a_group_shows_where_its_sessions_part(page: Any, url: str) -> None:
    await opened(page, url, "#/run/first/group/train-30.0")
    assert await page.locator(".together > section").count() == 4
    assert await page.locator(".parts").first.get_attribute("data-message") == "2"
    marked = await page.evaluate("[...CSS.highlights.get('differs')].map(range => range.toString())")
    told = await page.locator("[data-message='2'] .body").all_inner_texts()
    assert len(set(told)) > 1, "tools answered otherwise"
    assert {text.strip() for text in told} <= set(marked), "they have nothing in common, so all of them is marked"


async def test_a_logarithmic_chart_has_round_ticks_and_one_without_positive_values_stays_linear(
    page: Any, tmp_path: Path
) -> None:
    write_run(tmp_path / "runs" / "one", steps=9, hostile=False)
    rows = [
        {"step": step, "version": step, "reward/mean": 0.3 + step / 20, "policy/logp": -step / 9}
        for step in range(1, 10)
    ]
    (tmp_path / "runs" / "one" / "metrics.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    async with viewed(page, tmp_path / "runs") as url:
        await opened(page, url, "#/run/one/curves?log=1&smooth=0.9")
        labels = {}
        for name in ("reward/mean", "policy/logp"):
            await page.locator(f'[data-chart="{name}"] polyline.line').wait_for(state="attached")
            labels[name] = await page.locator(f'[data-chart="{name}"] text[text-anchor="end"]').all_text_contents()
    assert all(len(text) <= 4 for texts in labels.values() for text in texts), labels
    assert all(float(text) < 0 for text in labels["policy/logp"]), labels


async def test_what_a_model_or_tool_wrote_is_text_and_can_do_nothing(page: Any, url: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await opened(page, url, "#/run/first/sessions?group=train-5.0")
    await page.locator(".chip", has_text=HOSTILE[:20]).wait_for()
    await page.get_by_role("link", name="train-5.0-0").click()
    await page.locator(".replays").wait_for()
    assert await page.get_by_label("Note", exact=True).input_value() == HOSTILE
    await opened(page, url, "#/run/first/sessions?group=hostile")
    await page.locator("tbody a.name").click()
    await page.locator('[data-message="2"]').wait_for()
    await page.locator('[data-message="1"]').get_by_role("button", name="Tokens").click()
    await page.locator(".tokens").wait_for()
    shown = await page.locator('[data-message="0"] .text').inner_text()
    assert shown == HOSTILE.replace("\x1b", "␛").replace("\u202e", "⟨202E⟩").replace("\u202c", "⟨202C⟩")
    assert await page.evaluate("window.attacked") is None
    assert await page.locator("main script, main img, main a[href^='javascript']").count() == 0
    assert all(address.startswith(f"{url}/") for address in asked)


async def test_a_page_follows_a_run_as_it_goes_on(page: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "growing", steps=5, hostile=False)
    async with viewed(page, tmp_path) as url:
        await opened(page, url, "#/run/growing")
        append(run / "metrics.jsonl", orjson.dumps({"step": 6, "loss": 1234.0}) + b"\n")
        await page.locator('[data-chart="loss"] svg[aria-label*="1234"]').wait_for()


async def test_a_step_of_the_timeline_opens_its_time_and_a_bar_its_session(page: Any, url: str) -> None:
    await opened(page, url, "#/run/first/timeline")
    await page.locator('[data-step="7"]').click()
    await page.wait_for_url("**from=*")
    await page.get_by_text(re.compile(r" to .* of .* since ")).wait_for()  # it is drawn anew, and takes the focus away
    await page.locator('[data-row="train-12.0-0"]').focus()
    await page.keyboard.press("Enter")
    await page.get_by_role("heading", name="train-12.0-0").wait_for()
    await page.go_back()
    await page.get_by_label("Timeline;").press("-")
    await page.wait_for_function("location.hash.includes('from=5')")
    await page.get_by_role("button", name="Show all").click()
    await page.wait_for_function("!location.hash.includes('from')")


async def test_a_list_is_walked_by_keys_and_no_view_is_wider_than_a_telephone(page: Any, url: str) -> None:
    await opened(page, url, "#/")
    await page.keyboard.press("j")
    name = await page.evaluate("document.activeElement.dataset.row")
    await page.keyboard.press("Enter")
    await page.get_by_role("heading", name=name).wait_for()
    await page.set_viewport_size({"width": 360, "height": 740})
    for view in VIEWS:
        await opened_whole(page, url, view)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360, view


async def test_a_telephone_shows_rewards_curves_and_the_conversation_first_with_the_tree_in_step(
    page: Any, url: str
) -> None:
    await page.set_viewport_size({"width": 360, "height": 740})
    await opened(page, url, "#/")
    row = page.locator("tr", has=page.locator('[data-row="first"]'))
    for part in (row.locator("td.number").nth(1), row.locator("svg")):
        box = await part.bounding_box()
        assert box
        assert 0 <= box["x"] <= box["x"] + box["width"] <= 360
    await opened(page, url, "#/run/first/sessions?status=truncated")
    assert not await page.get_by_label("status").is_visible()
    await page.get_by_text("Filters", exact=True).click()
    await page.get_by_label("status").select_option("completed")
    await page.locator("tbody .badge.completed").first.wait_for()
    await opened(page, url, "#/run/first/session/forked-0.0-0")
    assert await page.locator("[data-message]").first.evaluate("each => each.getBoundingClientRect().top < 400")
    assert not await page.get_by_role("tree").is_visible()
    await page.get_by_text("Tree", exact=True).click()
    for message in (3, 0):
        await page.locator(f'[data-message="{message}"]').evaluate("each => scrollTo(0, each.offsetTop - 100)")
        await page.locator(
            ".node.reading[data-node='0']" if message == 0 else ".node.reading:not([data-node='0'])"
        ).wait_for()
        assert await page.evaluate(
            "() => { const box = name => document.querySelector(name).getBoundingClientRect();"
            " const [a, b] = [box('.node.reading'), box('.outline')];"
            " return a.top >= b.top - 1 && a.bottom <= b.bottom + 1 }"
        )


async def test_settings_and_the_timeline_can_be_read_on_a_telephone(page: Any, tmp_path: Path) -> None:
    """Long names left a value the width of a letter, and the timeline's words were 3 pixels high."""
    run = write_run(tmp_path / "run", steps=2, hostile=False)
    (run / "config.yaml").write_text("rollout: {branch: {max_continuations_of_a_session: castles/of/sand.py}}")
    await page.set_viewport_size({"width": 360, "height": 740})
    async with viewed(page, tmp_path) as url:
        await opened(page, url, "#/run/run/settings")
        box = await page.locator("table.settings td").first.bounding_box()
        assert box["width"] > 120
        await opened(page, url, "#/run/run/timeline")
        box = await page.locator("svg.timeline text.lane").first.bounding_box()
        assert box["height"] > 6
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360


async def test_a_view_may_be_left_before_what_it_asked_for_arrives(page: Any, url: str) -> None:
    """On a busy machine that was an error on the page."""
    await opened(page, url, "#/run/first/session/forked-0.0-0")
    await page.route("**/api/tokens?*", lambda route: None)
    async with page.expect_request("**/api/tokens?*"):
        await page.locator("button", has_text="tokens").first.click()
    await opened(page, url, "#/run/first/health")


async def test_names_and_contrast_pass_axe_in_both_themes(page: Any, url: str) -> None:
    need(importlib.util.find_spec("axe_playwright_python") is not None, "axe-playwright-python")
    from axe_playwright_python.async_playwright import Axe

    every: dict[str, Any] = {"resultTypes": ["violations"]}
    contrast = {**every, "runOnly": ["color-contrast"]}  # of the rules the one that a theme changes
    for view in VIEWS:
        await opened_whole(page, url, view)
        for theme, options in (("light", every), ("dark", contrast)):
            await page.evaluate("theme => document.documentElement.dataset.theme = theme", theme)
            violations = (await Axe().run(page, options=options)).response["violations"]
            found = {each["id"]: each["nodes"][0]["html"] for each in violations}
            assert found == {}, f"{view} {theme}"
