"""Texts of models, tools and strangers on every page: none is more than text, with the pages' policy and without it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import orjson
import pytest
import yaml

from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.types import FunctionCall, Message, Session, Status, Task, ToolCall
from agentrl.viewer.notes import RUN, NoteChange, Notes
from agentrl.viewer.replay_process import Replays
from agentrl.viewer.report import report
from agentrl.viewer.runs import run_at
from tests.redteam.pages import SCRIPTS
from tests.viewer.conftest import viewing
from tests.viewer.recorded import BEGAN, spoken

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
TEXTS = [attack.payload for attack in SCRIPTS]
ACTIVE = "script, iframe, object, embed, base, form[action], meta[http-equiv=refresh], [srcset], [formaction], [ping]"
LINKS = """() => [...document.querySelectorAll('*')].flatMap(element => [...element.attributes]
  .filter(({ name }) => /^on|^(xlink:)?href$|^src$|^data$|^style$/.test(name))
  .map(({ name, value }) => `${element.localName} ${name}=${value}`))"""
"""Every attribute in the document by which an element could run or ask for something."""

GO = "view => { delete main.dataset.shown; main.replaceChildren(); location.hash = view }"


def folder_name(text: str) -> str:
    """A text as the name of a folder; what separates folders is left out."""
    return text.replace("/", "|").lstrip(".")


def session_of(number: int, text: str) -> Session:
    """A session that has the text in every field that takes one."""
    session = Session(
        f"{number}{text}",
        Task(id=text, data={text: text, "list": [text, {text: [text]}]}),
        group=text,
        phase="train",
        step=number % 3,
        environment=text,
        started=BEGAN + number,
        ended=BEGAN + number + 1,
        error=text,
        info={text: text},
    )
    tools = [{"type": "function", "function": {"name": text, "description": text, "parameters": {text: text}}}]
    content: list[dict[str, Any]] = [
        {"type": "text", "text": text},
        {"type": "image_url", "image_url": {"url": text}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}},
    ]
    root = tree.add(session, None, Message.model_validate({"role": "user", "content": content}), [1], tools=tools)
    arguments = (text, json.dumps({text: text, "patch": f"--- a\n+++ b\n@@ -1 +1 @@\n-{text}\n+{text}\n"}))
    calls = [ToolCall(id=text, function=FunctionCall(name=text, arguments=each), error=text) for each in arguments]
    words = Message(role="assistant", content=f"```{text}\n{text}\n```\n{text}", reasoning_content=text)
    called = spoken(session, root, words.model_copy(update={"tool_calls": calls}), 1)
    called.agent, called.engines, called.policy = text, (text,), f"{number}{text}"
    spoken(session, called, Message(role="assistant", content=text), 1).policy = text  # who played whom
    for told in (text, json.dumps([text, {text: text}])):
        tree.add(session, called.id, Message(role="tool", content=told, tool_call_id=text, name=text), [2])
    for node in session.nodes:
        node.timings = {"generation": 0.5, "began": BEGAN + number, text: 0.1}
    session.rewards, session.reward, session.counters = {text: 0.5}, number / 9, {text: 1}
    session.status = Status.AGENT_ERROR
    return session


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose first run has every text in every field, and a run that is named by each of them."""
    folder = tmp_path_factory.mktemp("hostile")
    names = {f"{first}{text}": 0.5 for text in TEXTS for first in ("", "reward/", "time/", "sessions/")}
    rows = [{"step": step, "version": step, "reward/mean": 0.1 * step, "loss": TEXTS[0], **names} for step in (1, 2, 3)]
    for name in ("all", *map(folder_name, TEXTS)):
        run = folder / name
        run.mkdir()
        settings = {text: {text: text, "list": [text]} for text in TEXTS} | {"played": False}
        settings |= {"policies": {text: {"name": text, "algo": {"name": text}} for text in TEXTS}}
        known = {"env": {"name": name}, "model": {"name": name}, "algo": {"name": name}, "engine": {"name": name}}
        (run / "config.yaml").write_text(yaml.safe_dump(known | (settings if name == "all" else {})))
        (run / "metrics.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
        Notes(run).put(RUN, NoteChange(text=name, tags=(name[:40],)))
    found = {"policy": TEXTS[1], "finding": TEXTS[2], "split": TEXTS[3], "errors": {TEXTS[4]: 1}, "sessions": 1}
    (folder / "all" / "result.json").write_bytes(orjson.dumps({**found, "tasks": 1, "seconds": 1.0, "mean": TEXTS[5]}))
    with Store(folder / "all" / "sessions.db") as store:
        for number, text in enumerate(TEXTS):
            store.save(session_of(number, text))
            Notes(folder / "all").put(f"{number}{text}", NoteChange(text=text, tags=(text[:40],)))
    return folder


def views(run: str, sessions: int) -> Iterator[str]:
    """The address of every view, and of some sessions; with texts wherever an address has a place for one."""
    yield "#/"
    yield "#/compare?" + urlencode([("run", folder_name(text)) for text in TEXTS])
    for tab in ("curves", "sessions", "timeline", "health", "settings"):
        yield f"#/run/{run}/{tab}"
    for number, text in enumerate(TEXTS[:sessions]):
        yield f"#/run/{run}/session/{quote(f'{number}{text}', safe='')}"
        if number % 5 == 0:
            yield f"#/run/{run}/group/{quote(text, safe='')}"
    yield f"#/run/{run}/sessions?" + urlencode([("text", TEXTS[0]), ("tag", TEXTS[2]), (TEXTS[3], TEXTS[4])])
    yield f"#/run/{quote(TEXTS[0], safe='')}/{quote(TEXTS[1], safe='')}/{quote(TEXTS[2], safe='')}"


@asynccontextmanager
async def watched(page: Any, *, policy: bool) -> AsyncIterator[tuple[Any, list[Any]]]:
    """A page of its own, and the answers that it got; without the policies of pages where there is none."""
    context = await page.context.browser.new_context(bypass_csp=not policy)
    other, answers, errors = await context.new_page(), list[Any](), list[str]()
    other.on("pageerror", lambda error: errors.append(str(error)))
    other.on("response", lambda answer: answers.append(answer))
    other.on("request", lambda request: answers.append(request) if not request.url.startswith("http://127.") else None)
    yield other, answers
    await context.close()
    assert errors == []


async def assert_only_text(page: Any, allowed: tuple[str, ...], scripts: int) -> None:
    assert [await frame.evaluate("window.attacked") for frame in page.frames] == [None]
    assert await page.locator(ACTIVE).count() == scripts
    links = await page.evaluate(LINKS)
    assert [link for link in links if not link.startswith(allowed) or ("style=" in link and "url(" in link)] == []


@pytest.mark.parametrize("policy", [True, False], ids=["with the policy", "without the policy"])
async def test_no_text_is_more_than_text_on_any_page_of_the_viewer(page: Any, hostile: Path, policy: bool) -> None:
    own = ("a href=#", "img src=/static/", "img src=data:image/png;base64,", "link href=/static/")
    own += ("script src=/static/", "use href=#", "i style=", "span style=", "div style=")
    own += ("img src=/api/image?",)  # until it is known that it shows nothing
    with closing(Replays()) as replays, viewing(hostile, replays=replays) as url:
        async with watched(page, policy=policy) as (shown, answers):
            await shown.goto(url)
            for view in views("all", 2 if policy else len(TEXTS)):
                await shown.wait_for_selector("main[data-shown], main .trouble")
                await shown.evaluate(GO, view)
                await shown.wait_for_selector("main[data-shown], main .trouble")
                if view == "#/run/all/sessions":
                    await shown.wait_for_selector(".players")
                await shown.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
                for button in ("Tokens of message 1", "Replay turn 1", "PNG", "CSV"):
                    if await shown.get_by_role("button", name=button).count():
                        await shown.get_by_role("button", name=button).first.click()
                await assert_only_text(shown, own, scripts=1)
            await shown.goto("about:blank")
    asked = [answer.url for answer in answers if not answer.url.startswith((url, "data:", "blob:", "about:"))]
    assert asked == []
    for answer in (each for each in answers if hasattr(each, "status") and each.url.startswith(url)):
        assert "script-src 'self'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("policy", [True, False], ids=["with the policy", "without the policy"])
async def test_no_text_is_more_than_text_in_a_report(page: Any, hostile: Path, policy: bool, tmp_path: Path) -> None:
    async with watched(page, policy=policy) as (shown, answers):
        for name in ("all", *map(folder_name, TEXTS[:5])):
            file = tmp_path / "report.html"
            file.write_bytes(report(run_at(hostile / name)))
            await shown.goto(file.as_uri())
            await shown.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
            await assert_only_text(shown, (), scripts=0)
            assert "default-src 'none'" in await shown.locator("meta[http-equiv]").get_attribute("content")
    assert {answer.url for answer in answers} == {file.as_uri()}
