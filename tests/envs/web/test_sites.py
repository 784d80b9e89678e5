"""The shop and the forms: solved by the expert, judged by the server's state, one session apart from another."""

from __future__ import annotations

import asyncio
import copy
import http.client
import importlib.util
import random
import re
import shutil
from itertools import islice
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.common.pictures import picture
from agentrl.envs import calls
from agentrl.envs.builtin.web.env import WebEnv
from agentrl.envs.builtin.web.forms.catalogue import FORMS, SIMPLE, value_of
from agentrl.envs.builtin.web.forms.site import FormSite
from agentrl.envs.builtin.web.forms.tasks import credit as form_credit
from agentrl.envs.builtin.web.page import MAX_PAGE, parse
from agentrl.envs.builtin.web.picture import MARK
from agentrl.envs.builtin.web.server import MAX_BODY, sites
from agentrl.envs.builtin.web.shop.catalogue import catalogue
from agentrl.envs.builtin.web.shop.site import MAX_LINES, Line, Shop
from agentrl.envs.builtin.web.shop.tasks import cheapest
from agentrl.envs.builtin.web.shop.tasks import credit as shop_credit
from agentrl.envs.check import check_env
from agentrl.envs.data.samples import random_policy
from agentrl.envs.episode import expert_policy, play, record
from agentrl.envs.registry import make
from agentrl.errors import ConfigError
from agentrl.types import Status, Task
from tests.conftest import need

BOTH = pytest.mark.parametrize("name", ["web_shop", "web_forms"])
LEVELS = (1, 2, 3)


def first(name: str, level: int, split: str = "eval") -> Task:
    return next(iter(calls.tasks(make(name, level=level), split)))


# ------------------------------------------------------------------------------ both sites


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("level", LEVELS)
async def test_the_expert_solves_every_level_and_a_random_agent_hardly_anything(name: str, level: int):
    by_chance = 0.0
    for number, task in enumerate(islice(make(name, level=level).tasks("eval"), 4)):
        session = await play(make(name, level=level), task)
        assert (session.reward, session.status, session.counters["tool_errors"]) == (1, Status.COMPLETED, 0), task
        by_chance += (await play(make(name, level=level), task, random_policy(number), max_turns=20)).reward or 0.0
    assert by_chance / 4 < 0.3


@BOTH
def test_no_task_is_in_two_splits(name: str):
    asked = {split: {task["words"] for task in islice(make(name).tasks(split), 150)} for split in ("train", "eval")}
    assert not asked["train"] & asked["eval"]


@BOTH
async def test_an_episode_goes_on_from_any_turn_as_if_it_had_not_been_interrupted(name: str):
    task = first(name, 3)
    whole = await play(make(name), task, close=False)
    env: Any = make(name)
    messages = await calls.reset(env, task)
    while True:
        message = await calls.expert(env, messages)
        messages.append(message)
        result = await calls.step(env, message)
        messages += result.messages
        if result.terminated:
            break
        other: Any = await calls.fork(env)
        assert other.browser.page.text() == env.browser.page.text()
        assert other.site is not env.site
        await calls.close(env)
        env = other
    assert [m.text for m in messages if m.role == "tool"] == [m.text for m in whole.messages if m.role == "tool"]
    assert env.site.state() == env.site.state()
    await calls.close(env)


@pytest.mark.slow
@BOTH
async def test_two_episodes_at_once_share_nothing(name: str):
    tasks = list(islice(make(name, level=2).tasks(), 6))
    together = await asyncio.gather(*(play(make(name, level=2), task) for task in tasks))
    alone = [await play(make(name, level=2), task) for task in tasks]
    assert [record(session) for session in together] == [record(session) for session in alone]


@BOTH
async def test_only_addresses_of_the_site_are_opened_and_wrong_numbers_are_named(name: str):
    env: Any = make(name)
    await calls.reset(env, first(name, 1))
    host = env.site.host
    for call, words in (
        (env.call("open", url="http://127.0.0.1:1/"), f"only addresses of http://{host}/ can"),
        (env.call("open", url="file:///etc/passwd"), "can't be opened"),
        (env.call("open", url="http://user@example.org/"), "can't be opened"),
        (env.call("open", url="http://[::1"), "is no address"),
        (env.call("open", url="/" + "x" * 600), "at most 500"),
        (env.call("click", number=99), "the page has the numbers 1 to"),
        (env.call("type", number=1, text="x" * 201), "a field takes 200"),
        (env.call("back"), "no page before"),
    ):
        answer = (await calls.step(env, call)).messages[0].text
        assert answer.startswith("Error:")
        assert words in answer
    assert "Not Found" in (await calls.step(env, env.call("open", url="/nowhere?x=\n&y= z"))).messages[0].text
    await calls.close(env)


def exchange(host: str, cookie: str | None, body: str | None = None, path: str = "/") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", sites().port, timeout=30)
    headers = {"Host": host} | ({} if cookie is None else {"Cookie": cookie})
    connection.request("GET" if body is None else "POST", path, body, headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_the_server_refuses_other_hosts_and_requests_without_a_session():
    number = sites().open(Shop(0))
    assert exchange("shop.test", f"session={number}") == 200
    assert exchange("forms.test", f"session={number}") == 421
    assert exchange(f"127.0.0.1:{sites().port}", f"session={number}") == 421
    assert exchange("shop.test", None) == exchange("shop.test", "session=1") == exchange("shop.test", ";=;") == 403
    assert exchange("shop.test", f"session={number}", "x" * (MAX_BODY + 1), "/order") == 413
    assert exchange("shop.test", f"session={number}", "&".join("a=b" for _ in range(500)), "/order") == 303
    sites().close(number)
    assert exchange("shop.test", f"session={number}") == 403


@BOTH
async def test_an_ended_episode_leaves_no_session_behind(name: str):
    before = dict(sites().sessions)
    await play(make(name), first(name, 1))
    assert sites().sessions == before


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=60))
def test_what_an_agent_typed_never_becomes_a_part_of_the_page(typed: str):
    words = " ".join(typed.split())
    shop = Shop(0)
    page = parse("", shop.get("/search", {"q": words}) or "")
    plain = parse("", shop.get("/search", {"q": "zzzz"}) or "")
    texts = [element for element in page.elements if element.kind not in ("link", "button")]
    assert [element.name for element in texts] == [element.name for element in plain.elements if element.name]
    assert {form.path for form in page.forms} == {"/search"}
    site = FormSite([FORMS["leave"]])
    site.post("/leave/1", {"name": words, "team": words})
    fields = parse("", site.get("/leave/1", {}) or "").elements
    assert [element.name for element in fields] == ["name", "team", ""]


def test_a_page_of_any_length_is_shown_up_to_a_bound():
    text = parse("http://x.test/", "<p>" + "word " * 50_000).text()
    assert len(text) < MAX_PAGE + 200
    assert "left out" in text


def test_a_page_shows_headings_lists_and_numbered_elements_and_no_scripts():
    html = """<head><title>t</title></head><h1>Top</h1><script>var x = "<p>no</p>"</script><p>a <b>bold</b>
    word &amp; more</p><ul><li><a href="/x">a link</a></ul><form action=/f><input type=hidden name=h value=1>
    <input name=q value=old><select name=s><option>one</option><option selected>two</option></select>
    <textarea name=t>long</textarea><input type=checkbox name=c value=yes checked>
    <button name=b value=go>Send</button></form>"""
    page = parse("http://x.test/", html)
    assert page.text().splitlines() == [
        "http://x.test/",
        "# Top",
        "a bold word & more",
        "- [1 a link]",
        '[2 field: "old"] [3 choice: two, of one, two] [4 field: "long"] [5 checkbox: on] [6 button: Send]',
    ]
    assert page.sent(page.elements[5], 0) == {"h": "1", "q": "old", "s": "two", "t": "long", "c": "yes", "b": "go"}


# ------------------------------------------------------------------------------ the shop


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_an_order_has_its_credit_for_item_options_quantity_budget_and_nothing_else(level: int):
    rng = random.Random(level)
    for task in islice(make("web_shop", level=level).tasks(), 20):
        shop = Shop(0)
        wanted = cheapest(task["wants"], shop.items)
        shop.basket = rng.sample(wanted, len(wanted))
        assert shop_credit(shop, task.data) == 0  # nothing is ordered yet
        shop.delivery = task["delivery"] or "standard"
        assert shop_credit(shop, task.data) == 1
        share = 1 / len(wanted)
        other = copy.deepcopy(shop)
        other.basket[0] = Line(shop.basket[0].item, shop.basket[0].options, 19)
        over = task["budget"] is not None and other.total > task["budget"]
        assert shop_credit(other, task.data) == pytest.approx((1 - 0.2 * share) * (0.5 if over else 1))
        other.basket = [*shop.basket, shop.basket[0]]
        assert shop_credit(other, task.data) < 1
        other.basket = shop.basket[1:]
        assert shop_credit(other, task.data) == pytest.approx(1 - share)


def test_a_budget_allows_the_cheapest_items_that_fit_and_every_want_can_be_bought():
    items = catalogue(0)
    for task in islice(make("web_shop", level=3).tasks(), 60):
        for line, want in zip(cheapest(task["wants"], items), task["wants"], strict=True):
            item = items[line.item]
            assert (item.kind, item.material) == (want["kind"], want["material"])
            assert want["feature"] in item.features
            assert all(value in item.options[name] for name, value in line.options.items())
        spent = sum(items[line.item].cents * line.quantity for line in cheapest(task["wants"], items))
        assert 0 <= task["budget"] - spent - {"standard": 400, "express": 1200}[task["delivery"]] <= 400


def test_the_shop_takes_whole_orders_only_and_nothing_after_one():
    shop = Shop(0)
    item = next(item for item in shop.items if "size" in item.options)
    colour = item.options["colour"][0]
    path, right = f"/item/{item.number}", {"colour": colour, "size": "small", "quantity": "2"}
    assert shop.post("/order", {"delivery": "standard"}) == "/basket"
    assert not shop.ended  # empty
    for wrong in ({"colour": "none"}, {"size": ""}, {"quantity": "0"}, {"quantity": "1e3"}, {"quantity": "٣"}):
        where = shop.post(path, {**right, **wrong}) or ""
        name, field = next(iter(wrong.items()))[0], where.partition("wrong=")[2]
        assert field.startswith((name, "the+quantity"))
        assert not shop.basket
        query = {"wrong": "size"}
        assert "Please check: size." in (shop.get(path, query) or "")
    for _ in range(MAX_LINES + 2):
        shop.post(path, right)
    assert len(shop.basket) == MAX_LINES
    shop.post("/remove", {"line": "0"})
    for line in ("99", "-1", "x", ""):
        shop.post("/remove", {"line": line})
    assert len(shop.basket) == MAX_LINES - 1
    shop.post("/order", {"delivery": "by air"})
    assert not shop.ended
    shop.post("/order", {"delivery": "express ($12.00)"})
    assert shop.delivery == "express"
    assert shop.total == 2 * item.cents * (MAX_LINES - 1) + 1200
    for again in (path, "/remove", "/order"):
        shop.post(again, {**right, "line": "0", "delivery": "standard"})
    assert (len(shop.basket), shop.delivery) == (MAX_LINES - 1, "express")


# ------------------------------------------------------------------------------ the forms


def filled(task: Task) -> FormSite:
    """The site after every page was sent with what was asked."""
    env: Any = make("web_forms")
    site: FormSite = env.new_site(task)
    form = site.forms[task["form"]]
    for number in range(1, len(form.pages) + 1):
        site.post(f"/{form.name}/{number}", task["values"])
    return site


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_a_record_has_its_credit_for_what_had_to_be_changed(level: int):
    for task in islice(make("web_forms", level=level).tasks(), 30):
        site = filled(task)
        assert site.record == {"form": task["form"], "values": task["values"]}
        assert form_credit(site.record, task.data) == 1
        assert form_credit(None, task.data) == form_credit({**site.record, "form": "other"}, task.data) == 0
        other = dict.fromkeys(task["values"], "?")
        assert form_credit({"form": task["form"], "values": other}, task.data) == 0
        one = {**task["values"], "name": "?"} if "name" in task["values"] else None
        if one is not None:
            assert 0.4 < form_credit({"form": task["form"], "values": one}, task.data) < 1


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6))
def test_every_value_that_is_asked_for_is_accepted_by_its_field(seed: int):
    rng = random.Random(seed)
    for field in [*SIMPLE, *(field for form in FORMS.values() for page in form.pages for field in page)]:
        assert field.accepts(value_of(field, rng)), field
        assert not field.accepts("") or field.kind == "checkbox"


def test_a_form_is_sent_only_with_every_page_right_and_once():
    site = FormSite(list(FORMS.values()))
    person = {"name": "Ana Berg", "team": "sales"}
    days = {"start": "2026-03-01", "end": "2026-03-05", "kind": "holiday"}
    assert site.post("/leave/3", {}) == "/leave/1"  # pages were left out
    assert site.post("/leave/1", {"name": " "}) == "/leave/1"
    assert "Please correct Full name." in (site.get("/leave/1", {}) or "")
    assert "Please correct" not in (site.get("/travel/1", {}) or "")
    assert site.post("/leave/1", person) == "/leave/2"
    assert site.post("/leave/2", {**days, "start": "1 March 2026"}) == "/leave/2"
    assert "a date such as" in (site.get("/leave/2", {}) or "")
    assert site.post("/leave/2", days) == "/leave/3"
    assert "Course" not in (site.get("/leave/3", {}) or "")
    assert site.post("/leave/2", {**days, "kind": "training"}) == "/leave/3"
    assert "Course" in (site.get("/leave/3", {}) or "")
    assert site.post("/leave/3", {}) == "/leave/3"
    assert not site.ended
    assert site.post("/leave/3", {"course": "First aid 1", "half": "yes"}) == "/sent"
    sent = copy.deepcopy(site.record)
    assert site.post("/leave/1", {**person, "name": "Ben"}) == "/sent"
    assert site.record == sent
    assert site.post("/nothing/1", {}) is site.post("/leave/4", {}) is site.get("/leave/0", {}) is None


# ------------------------------------------------------------------------------ the contract, and Chromium


@pytest.mark.slow
@BOTH
def test_it_keeps_the_contract(name: str):
    assert check_env(name, scored=2) == []


def test_an_unknown_level_or_browser_is_refused():
    with pytest.raises(ConfigError, match=r"env\.level = 4: allowed are 1, 2, 3"):
        make("web_forms", level=4)
    with pytest.raises(ConfigError, match="browser"):
        make("web_shop", browser="lynx")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "level"), [("web_shop", 2), ("web_forms", 3)])
async def test_chromium_shows_and_does_the_same_as_the_browser_without_graphics(name: str, level: int):
    """Also after going back, with boxes, and where a call is wrong; and nothing outside the site can be reached."""
    need(shutil.which("chromium") is not None, "Chromium (Debian's package chromium)")
    need(importlib.util.find_spec("playwright") is not None, "playwright")
    task = first(name, level)
    plain, real = [
        await play(make(name, level=level, browser=browser), task, _with_detours) for browser in ("text", "chromium")
    ]
    assert real.reward == 1
    assert record(real) == record(plain)


@pytest.mark.slow
async def test_a_page_is_shown_as_a_picture_with_the_numbers_that_clicks_take():
    """A field that is typed into looks other than before; and the expert, who reads the page, does as well as ever."""
    need(shutil.which("chromium") is not None, "Chromium (Debian's package chromium)")
    need(importlib.util.find_spec("playwright") is not None, "playwright")
    with pytest.raises(ConfigError, match=r"env.view = picture needs env.browser = chromium"):
        make("web_forms", view="picture")
    task = first("web_forms", 1)
    session = await play(make("web_forms", level=1, browser="chromium", view="picture"), task, expert_policy)
    assert session.reward == 1
    shown = [node.message for node in session.nodes if node.message.images]
    assert len(shown) == 1 + session.turns, "the opening, and the answer of each call"
    assert len({message.images[0] for message in shown}) == len(shown)
    assert all("[1 " not in message.text for message in shown)
    colours = {colour: count for count, colour in picture(shown[0].images[0]).getcolors(1 << 20)}
    assert colours[MARK] > 50, "numbers are drawn"


async def _with_detours(env: Any, messages: Any) -> Any:
    """The expert, who first makes calls that lead nowhere."""
    turn = sum(message.role == "assistant" for message in messages)
    detours = (
        env.call("open", url="/search?" + urlencode({"q": "wool blanket"})),
        env.call("open", url="/nowhere"),
        env.call("back"),
        env.call("open", url="http://example.org/"),
        env.call("click", number=1),
        env.call("open", url="/"),
    )
    return detours[turn] if turn < len(detours) else await expert_policy(env, messages)


@pytest.mark.slow
async def test_where_there_is_no_chromium_the_refusal_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    need(importlib.util.find_spec("playwright") is not None, "playwright")
    from agentrl.envs.builtin.web import chromium

    monkeypatch.setattr(chromium, "_started", None)
    monkeypatch.setattr(chromium.shutil, "which", lambda name: "/nowhere/chromium")
    env: Any = make("web_forms", level=1, browser="chromium")
    with pytest.raises(ConfigError, match=r"needs a Chromium that starts: install the package playwright"):
        await calls.reset(env, first("web_forms", 1))
    await calls.close(env)


class FakeContext:
    """Of a browser whose process may be gone."""

    def __init__(self, browser: FakeChromium) -> None:
        self.browser = browser

    async def add_cookies(self, cookies: Any) -> None:
        await asyncio.sleep(self.browser.seconds)

    async def new_page(self) -> Any:
        return SimpleNamespace(context=self, set_default_timeout=lambda seconds: None)

    async def close(self) -> None:
        from playwright.async_api import Error

        self.browser.contexts.remove(self)
        if not self.browser.connected:
            raise Error("Target closed")


class FakeChromium:
    """Stands for playwright's browser."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.connected, self.contexts = seconds, True, list[FakeContext]()

    def is_connected(self) -> bool:
        return self.connected

    async def new_context(self) -> FakeContext:
        self.contexts.append(FakeContext(self))
        return self.contexts[-1]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[FakeChromium]:
    """Those that were started, the next ones in place of real ones."""
    need(importlib.util.find_spec("playwright") is not None, "playwright")
    from agentrl.envs.builtin.web import chromium

    browsers: list[FakeChromium] = []

    async def start() -> FakeChromium:
        browsers.append(FakeChromium())
        return browsers[-1]

    monkeypatch.setattr(chromium, "_started", None)
    monkeypatch.setattr(chromium, "_start", start)
    return browsers


async def test_a_chromium_that_died_is_started_anew(started: list[FakeChromium]):
    """Every further session of the run was an infrastructure error."""
    from agentrl.envs.builtin.web.chromium import ChromiumBrowser

    for _ in range(2):
        browser = ChromiumBrowser("shop.test", "session")
        await browser.begin()
        started[-1].connected = False
    assert len(started) == 2


async def test_an_episode_whose_chromium_died_is_closed_like_any_other(started: list[FakeChromium]):
    from agentrl.envs.builtin.web.chromium import ChromiumBrowser

    env: Any = make("web_shop", level=1, browser="chromium")
    await env._begin(first("web_shop", 1))
    assert isinstance(env.browser, ChromiumBrowser)
    await env.browser.begin()
    started[0].connected = False
    await calls.close(env)
    assert sites().find(env._session) is None
    assert not started[0].contexts


@pytest.mark.slow
async def test_a_page_that_an_episodes_deadline_cut_off_leaves_no_context(
    started: list[FakeChromium],
):
    from agentrl.envs.builtin.web.chromium import ChromiumBrowser

    browser = ChromiumBrowser("shop.test", "session")
    await browser.begin()
    await browser.close()
    started[0].seconds = 60.0
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(browser.open("/"), 0.2)
    await browser.close()
    async with asyncio.timeout(60):
        while started[0].contexts:  # noqa: ASYNC110 - the browser has a loop of its own
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_an_episode_in_chromium_says_that_it_cant_be_saved():
    need(shutil.which("chromium") is not None, "Chromium (Debian's package chromium)")
    need(importlib.util.find_spec("playwright") is not None, "playwright")
    from agentrl.errors import StateUnsupported

    env: Any = make("web_forms", level=1, browser="chromium")
    await calls.reset(env, first("web_forms", 1))
    assert re.match(r"http://forms\.test/\n# Contact", env.browser.page.text())
    with pytest.raises(StateUnsupported, match="browser=text"):
        await calls.state(env)
    await calls.close(env)
    assert isinstance(env, WebEnv)
