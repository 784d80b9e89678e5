"""`agentrl report RUN`: a run in one HTML file that needs nothing else, to be sent to somebody; `--all`: every session.

With `--all` it is a folder of pages with links to each other alone: the report, and a page for each session. A page is
built as a tree of elements, so what models and tools wrote can only be text. It has no scripts, and its content
security policy allows none: nothing is loaded, and the one style sheet is named by its hash.
"""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from importlib import resources
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from agentrl.common.untrusted import visible_text
from agentrl.errors import AgentRLError, InvalidInput
from agentrl.rollout.episodes import edits
from agentrl.sessions.store import edited
from agentrl.sessions.store.query import Between, Filters
from agentrl.sessions.store.summary import Summary
from agentrl.sessions.tree import tree
from agentrl.train.display.panel import clock, short
from agentrl.types import Node, Session
from agentrl.viewer import health, images, series
from agentrl.viewer.runs import Run
from agentrl.viewer.series import WINDOW

CURVES = (
    *("reward/", "eval/mean", "policy/entropy", "mismatch/abs_mean", "sessions/turns", "sessions/trained_tokens"),
    *("status/truncated", "status/agent_error", "status/infra_error", "staleness/mean", "time/step"),
    "throughput/tokens_per_s",
)
"""Beginnings of the names of the metrics that are drawn."""
SHOWN = 3
"""Sessions from each end: the worst and the best."""
MOST_MESSAGES = 60
"""Messages of a session's first path."""
CLIP = 4000
"""The most characters of a text."""
CLIP_ALL = 100_000
"""Characters of a text on a session's own page, as in the viewer."""
LISTED = 1000
"""Sessions on a page of the list."""
WIDTH, HEIGHT = 300, 90
"""Width and height of a curve, in its own units."""


def report(run: Run) -> bytes:
    """Return the page of a run, in UTF-8."""
    rows = run.metrics.rows()
    page, body = _page(run.name)
    _overview(body, run, rows)
    _sessions(body, run, rows)
    _settings(body, run.settings())
    return _bytes(page)


def pages(run: Run) -> Iterator[tuple[str, bytes]]:
    """All pages of a run by their names: index.html first, the list of all sessions, and a page for each of them."""
    store = run.store()
    total = sum(store.counts().values())
    lists = [_list_name(number) for number in range(-(-total // LISTED))]
    page, body = _page(run.name)
    _overview(body, run, run.metrics.rows())
    if lists:
        _add(body, "h2", "Sessions")
        _link(SubElement(body, "p"), lists[0], f"all {total:,} sessions, by task")
    _settings(body, run.settings())
    yield "index.html", _bytes(page)
    after: str | None = None
    for number, name in enumerate(lists):
        found = store.find({}, sort="task", limit=LISTED, after=after)
        first, after = number * LISTED, found.next
        yield name, _list(run, found.rows, lists, number)
        for place, row in enumerate(found.rows, first):
            page, body = _page(f"{row.task} ({row.id})")
            _link(SubElement(body, "p"), f"../{name}", run.name)
            _whole_session(body, run, store.load(row.id))
            yield _session_name(place), _bytes(page)
        if after is None:
            break


def _page(title: str) -> tuple[Element, Element]:
    """A page with its title, and its body."""
    style = (resources.files("agentrl.viewer") / "static" / "report.css").read_text()
    html = Element("html", lang="en")
    head, body = SubElement(html, "head"), SubElement(html, "body")
    SubElement(head, "meta", charset="utf-8")
    digest = b64encode(sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    SubElement(head, "meta", {"http-equiv": "Content-Security-Policy", "content": policy})
    SubElement(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    SubElement(head, "meta", name="referrer", content="no-referrer")
    _add(head, "title", title)
    SubElement(head, "style").text = style
    _add(body, "h1", title)
    return html, body


def _bytes(page: Element) -> bytes:
    text: str = tostring(page, encoding="unicode", method="html")
    return f"<!DOCTYPE html>\n{text}".encode()


def _overview(body: Element, run: Run, rows: Sequence[dict[str, Any]]) -> None:
    """The results of a run, or of an evaluation."""
    _summary(body, run)
    _result(body, run)
    _alarms(body, health.alarms(list(rows), run.settings()))
    _curves(body, rows)


def _list_name(number: int) -> str:
    return "sessions.html" if not number else f"sessions-{number + 1}.html"


def _session_name(place: int) -> str:
    """Made of numbers alone: an id can be anything."""
    return f"sessions/{place + 1:06d}.html"


def _link(parent: Element, to: str, text: str) -> None:
    _add(parent, "a", text).set("href", to)


def _add(parent: Element, tag: str, text: object = "", css: str = "") -> Element:
    """A new element with a text, which may come from anywhere."""
    element = SubElement(parent, tag, {"class": css} if css else {})
    element.text = visible_text(str(text), keep="\n\t")
    return element


def _summary(body: Element, run: Run) -> None:
    found = run.summary()
    table = SubElement(body, "table")
    lines = {
        "state": f"{found['state']}, as of {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(run.updated()))}",
        "steps": f"{found['done']} of {found['steps']}" if found["steps"] else "",
        "reward": "" if found["reward"] is None else short(float(found["reward"])),
        "training time": clock(sum(series.columns(run.metrics.rows(), ())["hours"][-1:]) * 3600),
        **{name: found[name] for name in ("environment", "model", "algorithm", "engine")},
    }
    for name, value in lines.items():
        if value:
            _line(table, name, value)


def _result(body: Element, run: Run) -> None:
    if (found := run.shown_evaluation()) is None:
        return
    _add(body, "h2", "Result")
    table = SubElement(body, "table")
    low, high = found.get("low"), found.get("high")
    lines = {
        "mean": found.get("mean"),
        "95% CI": None if low is None or high is None else f"{short(float(low))} to {short(float(high))}",
        "caution": found.get("caution"),
        "pass@k": _passes(found.get("pass_at")),
        "pass^k": _passes(found.get("pass_hat")),
        **(found.get("metrics") or {}),
        "finding": found.get("finding"),
    }
    for name, value in lines.items():
        if value is not None and value != "":
            _line(table, name, short(float(value)) if isinstance(value, int | float) else value)
    for line in edits.describe_edits(found):
        _line(table, *line.split(": ", 1))


def _passes(values: Mapping[str, float] | None) -> str:
    return ", ".join(f"{short(float(value))} (k={k})" for k, value in (values or {}).items())


def _line(table: Element, name: str, value: object) -> None:
    line = SubElement(table, "tr")
    _add(line, "th", name).set("scope", "row")
    _add(line, "td", value)


def _alarms(body: Element, alarms: Sequence[dict[str, Any]]) -> None:
    _add(body, "h2", "Health")
    for alarm in alarms:
        box = SubElement(body, "section", {"class": str(alarm["level"].value)})
        _add(box, "h3", f"{alarm['title']} ({alarm['level'].value})")
        _add(box, "p", alarm["reason"])
        _add(box, "p", alarm["advice"])
    if not alarms:
        _add(body, "p", "No rule of `agentrl view` finds anything wrong.")


# ------------------------------------------------------------------------------------------------ curves


def _curves(body: Element, rows: Sequence[dict[str, Any]]) -> None:
    wanted = [name for name in series.names(rows) if name.startswith(CURVES)]
    found = series.columns(list(rows), wanted)
    drawn = {
        name: points
        for name, values in found["values"].items()
        if len(points := [(s, v) for s, v in zip(found["step"], values, strict=True) if v is not None]) > 1
    }
    if drawn:
        _add(body, "h2", "Curves")
        grid = SubElement(body, "div", {"class": "curves"})
        for name, points in drawn.items():
            _curve(grid, name, points)


def _curve(parent: Element, name: str, points: Sequence[tuple[int, float]]) -> None:
    """A metric over the steps, with its range and its last value."""
    (first, _), (last, value) = points[0], points[-1]
    low, high = min(v for _, v in points), max(v for _, v in points)
    across, up = WIDTH / max(last - first, 1), (HEIGHT - 4) / (high - low) if high > low else 0.0
    path = " ".join(f"{(s - first) * across:.1f},{HEIGHT - 2 - (v - low) * up:.1f}" for s, v in points)
    figure = SubElement(parent, "figure")
    _add(figure, "figcaption", f"{name}: {short(value)}")
    size = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "preserveAspectRatio": "none", "role": "img"}
    svg = SubElement(figure, "svg", size)
    _add(svg, "title", f"{name} from step {first} to {last}, between {short(low)} and {short(high)}")
    SubElement(svg, "polyline", {"points": path, "vector-effect": "non-scaling-stroke"})
    _add(figure, "small", f"steps {first} to {last}, {short(low)} to {short(high)}")


# ---------------------------------------------------------------------------------------------- sessions


def _sessions(body: Element, run: Run, rows: Sequence[dict[str, Any]]) -> None:
    _add(body, "h2", "Sessions")
    try:
        ended = run.store().counts()
        _add(body, "p", ", ".join(f"{count:,} {status}" for status, count in sorted(ended.items())))
        for what, wanted, descending in _choose(rows):
            page = run.store().find(wanted, sort="score", descending=descending, limit=SHOWN)
            found = [row.id for row in page.rows if row.score is not None]
            if found:
                _add(body, "h3", what)
            for id_ in found:
                _session(body, run, run.store().load(id_))
    except AgentRLError as error:
        _add(body, "p", error)


def _choose(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Filters, bool]]:
    """The sessions that are shown: the worst and the best of the last steps, or of all where there are none."""
    if rows:
        first, last = rows[-WINDOW:][0]["step"], rows[-1]["step"]
        wanted: Filters = {"phase": "train", "step": Between(first - 1, last - 1)}  # the steps done when they began
        where = f"of steps {first} to {last}"
    else:
        wanted, where = {"phase": ("eval", "play")}, "of those that were played"
    yield f"The worst {where}", wanted, False
    yield f"The best {where}", wanted, True


def _list(run: Run, rows: Sequence[Summary], lists: Sequence[str], number: int) -> bytes:
    """A page of the list of all sessions, by task."""
    page, body = _page(f"{run.name}: sessions")
    line = SubElement(body, "p")
    _link(line, "index.html", run.name)
    for other, name in enumerate(lists if len(lists) > 1 else ()):
        _link(line, name, f" {other + 1}")
    table = SubElement(body, "table")
    header = SubElement(table, "tr")
    for name in ("task", "sample", "phase", "step", "score", "ended", "turns", "tokens", "error"):
        _add(header, "th", name).set("scope", "col")
    for place, row in enumerate(rows, number * LISTED):
        cells = SubElement(table, "tr")
        _link(SubElement(cells, "td"), _session_name(place), row.task or row.id)
        score = "" if row.score is None else short(row.score)
        step = "" if row.step is None else row.step
        for value in (row.sample, row.phase, step, score, row.status.value, row.turns, row.tokens, row.error or ""):
            _add(cells, "td", value)
    return _bytes(page)


def _session(body: Element, run: Run, session: Session) -> None:
    """A session, folded: what it earned, and the beginning of its first path as a conversation."""
    box = SubElement(body, "details", {"class": "session"})
    _add(box, "summary", f"{_ending(run, session)}: task {session.task.id} ({session.id})")
    _write_earned(box, session, CLIP)
    leaves = tree.leaves(session)
    path = tree.path(session, leaves[0].id) if leaves else []
    for node in path[:MOST_MESSAGES]:
        _message(box, node, CLIP)
    left = [f"{len(path) - MOST_MESSAGES} more messages"] if len(path) > MOST_MESSAGES else []
    left += [f"{len(leaves) - 1} more paths"] if len(leaves) > 1 else []
    if left:
        _add(box, "p", f"Not shown: {', '.join(left)}.")


def _whole_session(body: Element, run: Run, session: Session) -> None:
    """A session with all its paths; each message is shown once, on the first path that has it."""
    _add(body, "p", f"{_ending(run, session)}; {session.phase}, sample {session.sample}")
    _write_earned(body, session, CLIP_ALL)
    if session.task.data:
        folded = SubElement(body, "details")
        _add(folded, "summary", "task")
        _add(folded, "pre", _clip(json.dumps(session.task.data, indent=1, default=str, ensure_ascii=False), CLIP_ALL))
    shown: dict[int, int] = {}
    for number, leaf in enumerate(tree.leaves(session), 1):
        path = tree.path(session, leaf.id)
        new = [node for node in path if node.id not in shown]
        if number > 1:
            after = len(path) - len(new)
            _add(body, "h2", f"Path {number}, after {after} messages of an earlier one" if after else f"Path {number}")
        for node in new:
            shown[node.id] = number
            _message(body, node, CLIP_ALL)


def _ending(run: Run, session: Session) -> str:
    now = edited.scores(run.path).get(session.id)
    measured = "no score" if session.score is None else f"score {short(session.score)}"
    score = measured if now is None else f"score {short(now)} (edited; measured: {measured})"
    return f"{score}, {session.status.value}"


def _write_earned(box: Element, session: Session, clip: int) -> None:
    if session.error:
        _add(box, "p", _clip(session.error, clip))
    if session.rewards:
        _add(box, "p", ", ".join(f"{name} {short(value)}" for name, value in session.rewards.items()))


def _message(box: Element, node: Node, clip: int) -> None:
    message = node.message
    part = SubElement(box, "div", {"class": "assistant" if message.role == "assistant" else "other"})
    _add(part, "h4", message.role)
    if message.reasoning_content:
        folded = SubElement(part, "details")
        _add(folded, "summary", "reasoning")
        _add(folded, "pre", _clip(message.reasoning_content, clip))
    if message.text:
        _add(part, "pre", _clip(message.text, clip))
    for place in range(len(message.images)):
        try:
            data = b64encode(images.png(node, place)).decode()
        except InvalidInput as error:
            _add(part, "p", str(error))
        else:
            SubElement(part, "img", {"src": f"data:image/png;base64,{data}", "alt": f"image {place}"})
    for call in message.tool_calls or ():
        _add(part, "pre", _clip(f"{call.function.name}({call.function.arguments})", clip), "call")


def _clip(text: str, clip: int) -> str:
    return text if len(text) <= clip else f"{text[:clip]}\n… {len(text) - clip:,} more characters"


def _settings(body: Element, settings: Iterable[tuple[str, Any]] | dict[str, Any]) -> None:
    _add(body, "h2", "Settings")
    table = SubElement(SubElement(body, "details"), "table")
    for name, value in dict(settings).items():
        _line(table, name, value)
