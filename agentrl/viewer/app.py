"""The viewer's HTTP interface: JSON for its own page.

Handlers are plain functions, which run in threads: they read files and SQLite. What changes something is a POST of a
small JSON object (`guard` says from whom): it starts a replay, writes a note, or edits a score of an
evaluation. A run's own files are only read.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from agentrl.common.untrusted import read_json
from agentrl.errors import AgentRLError, Blame, InvalidInput, UnknownName
from agentrl.overrides import validate
from agentrl.rollout.episodes import edits
from agentrl.sessions.store.search import search
from agentrl.sessions.store.summary import Summary
from agentrl.sessions.tree import tree
from agentrl.viewer import conversations, difference, health, images, replayed, series
from agentrl.viewer.distribution import distribution
from agentrl.viewer.facets import facets, find_players, players, policies
from agentrl.viewer.filters import filters_of
from agentrl.viewer.guard import Guard
from agentrl.viewer.notes import RUN, NoteChange, ScoreChange, TaggedNote
from agentrl.viewer.replay_process import ReplayRequest, Replays
from agentrl.viewer.replayed import Replayed
from agentrl.viewer.runs import Run, Runs
from agentrl.viewer.timeline import timeline

PAGE = 200
"""Sessions in one answer, at most."""
KEPT_SESSIONS = 4
"""Sessions that stay in memory: a page asks for parts of one again and again."""
MOST_BODY = 64 * 1024
"""Bytes of what a page may send."""
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def create_app(
    root: Path, token: str | None = None, hosts: tuple[str, ...] = (), replays: Replays | None = None
) -> Guard:
    """The application for the runs below a folder.

    Args:
        root: the folder.
        token: what requests must bring; None lets everybody in who reaches the port.
        hosts: names that a request's Host header may have besides this machine's.
        replays: starts those that the page asks for; without it the page can change nothing.

    Raises:
        ConfigError: there is no such folder.
    """
    viewer = Viewer(Runs(root), replays)
    routes = [
        Route("/api/runs", _answer(viewer.runs)),
        Route("/api/run", _answer(viewer.run)),
        Route("/api/series", _answer(viewer.series)),
        Route("/api/sessions", _answer(viewer.sessions)),
        Route("/api/changes", _answer(viewer.changes)),
        Route("/api/facets", _answer(viewer.facets)),
        Route("/api/players", _answer(viewer.players)),
        Route("/api/distribution", _answer(viewer.distribution)),
        Route("/api/timeline", _answer(viewer.timeline)),
        Route("/api/session", _answer(viewer.session)),
        Route("/api/messages", _answer(viewer.messages)),
        Route("/api/tokens", _answer(viewer.tokens)),
        Route("/api/image", viewer.image),
        Route("/api/copy", viewer.copy),
        *(_changes(viewer) if replays is not None else ()),
        *_static(),
    ]
    app = Starlette(routes=routes, exception_handlers={AgentRLError: _answer_failure})  # type: ignore[dict-item]
    return Guard(app, token, hosts)


class Viewer:
    """The answers. A request's parameters are `run`, a run's name, and those that each method names."""

    def __init__(self, runs: Runs, replays: Replays | None = None) -> None:
        self._runs, self._replays = runs, replays
        self._kept: OrderedDict[tuple[str, str], tuple[list[Any], Replayed]] = OrderedDict()
        self._lock = threading.Lock()

    def runs(self, request: Request) -> Any:
        """Return the list of runs, and the chains that some are stages of."""
        runs = [run.summary() for run in self._runs.all().values()]
        return {"root": str(self._runs.given), "runs": runs, "chains": self._runs.chains()}

    def run(self, request: Request) -> Any:
        """A run's settings, the names of its metrics, and its alarms."""
        run = self._run(request)
        rows, settings = run.metrics.rows(), run.settings()
        return {
            "summary": run.summary(),
            "settings": settings,
            "names": series.names(rows),
            "policies": policies(run),
            "alarms": health.alarms(rows, settings),
            "evaluation": run.shown_evaluation(),
            "writable": self._replays is not None,
        }

    def series(self, request: Request) -> Any:
        """Metrics of several runs (`run`, `name`, each repeated) as columns, and all names, from row `start` on."""
        wanted = request.query_params.getlist("name")
        found = {}
        for name in request.query_params.getlist("run"):
            run = self._runs.get(name)
            rows = run.metrics.rows()
            start = min(_whole(request, "start", 0), len(rows))
            about = {"epoch": run.metrics.epoch, "rows": len(rows), "names": series.names(rows[start:])}
            found[name] = {**about, **series.columns(rows, wanted, start)}
        return {"runs": found}

    def sessions(self, request: Request) -> Any:
        """A page of sessions that fit the filters; with `text`, those that have it in a message."""
        run, given = self._run(request), request.query_params
        filters = filters_of(run, given.multi_items())
        limit = _whole(request, "limit", 50)
        if not 1 <= limit <= PAGE:
            raise InvalidInput(f"limit={limit} must be between 1 and {PAGE}")
        ordered: dict[str, Any] = {
            "sort": given.get("sort") or None,
            "descending": given.get("descending") == "1",
            "after": given.get("after"),
            "limit": limit,
        }
        if text := given.get("text"):
            found = search(run.database, text, filters, **ordered)
            return {**_rows(run, found.rows), "next": found.next, "searched": found.searched}
        page = run.store().find(filters, **ordered)
        total = sum(run.store().counts("status", filters).values()) if ordered["after"] is None else None
        return {**_rows(run, page.rows), "next": page.next, "total": total}

    def changes(self, request: Request) -> Any:
        """The tasks that two runs (`run`, twice) have other mean scores on, and the steps of their last evaluations."""
        names = request.query_params.getlist("run")
        if len(names) != 2:
            raise InvalidInput(f"{len(names)} runs; two are compared")
        first, second = map(self._runs.get, names)
        about, found = difference.tasks(first, second)
        steps = difference.last_evaluations((first, second))
        return {
            "about": about,
            "steps": steps,
            "total": len(found),
            "tasks": list(map(asdict, found[: difference.MOST_TASKS])),
        }

    def facets(self, request: Request) -> Any:
        """Return the number of sessions of each status, phase, environment, blame, agent, tool and tag."""
        return facets(self._run(request))

    def players(self, request: Request) -> Any:
        """Return how the run's policies fared against each other."""
        return players(self._run(request))

    def distribution(self, request: Request) -> Any:
        """Return the distribution of each step's scores."""
        run = self._run(request)
        return distribution(run.database, filters_of(run, request.query_params.multi_items()))

    def timeline(self, request: Request) -> Any:
        """Return what went on within `from` and `to`, both in seconds since the run began."""
        return timeline(self._run(request), _seconds(request, "from", 0.0), _seconds(request, "to", math.inf))

    def session(self, request: Request) -> Any:
        """A session (`id`), the outline of its tree, and its replays, one under way included."""
        run, found = self._run(request), self._session(request)
        job = self._replays and self._replays.of(run.path, found.session.id)
        refused = "the viewer only reads" if self._replays is None else conversations.no_replay(run, found.session)
        replays = {"refused": refused, "job": job, "done": found.replays, "values": replayed.values(found.replays)}
        note = run.notes.of([found.session.id]).get(found.session.id, TaggedNote())
        return {
            **conversations.head(found),
            "policies": policies(run),
            "replay": replays,
            "note": note.json(),
            "edits": run.edits().get(found.session.id, []),
            "editable": self._replays is not None and edits.editable(run.path, found.session),
            "writable": self._replays is not None,
        }

    def messages(self, request: Request) -> Any:
        """The messages of some of its nodes (`node`, repeated)."""
        return conversations.messages(self._session(request).tree, _nodes(request))

    def tokens(self, request: Request) -> Any:
        """The tokens of one of its nodes."""
        return conversations.tokens(self._run(request), self._session(request).tree, _nodes(request)[0])

    def image(self, request: Request) -> Response:
        """An image of the message of one of its nodes, by its place (`image`) there."""
        node = tree.get(self._session(request).tree, _nodes(request)[0])
        return Response(images.png(node, _whole(request, "image", 0)), media_type="image/png")

    def copy(self, request: Request) -> Response:
        """A session (or the path to `node`) `as` json, openai or pytest, as plain text."""
        found, kind = self._session(request), request.query_params.get("as")
        if kind == "json":
            return PlainTextResponse(conversations.as_json(found.session))
        leaf = _nodes(request)[0]
        if kind == "openai":
            return PlainTextResponse(conversations.as_openai(found.tree, leaf))
        if kind == "pytest":
            return PlainTextResponse(conversations.as_pytest(self._run(request), found.tree, leaf))
        raise InvalidInput(f"as={kind!r} must be json, openai or pytest")

    # ------------------------------------------------------------------------------------ changes

    @property
    def _writing(self) -> Replays:
        if self._replays is None:
            raise InvalidInput("the viewer only reads")
        return self._replays

    def start_replay(self, request: Request, given: dict[str, Any]) -> Any:
        """Start a replay of a session (`id`); what is given is a `ReplayRequest`."""
        replays, run, session = self._writing, self._run(request), self._session(request).session
        replays.start(run.path, session.id, validate(given, ReplayRequest))
        return replays.of(run.path, session.id)

    def cancel_replay(self, request: Request, given: dict[str, Any]) -> Any:
        """End the replay of a session (`id`) that is under way."""
        self._writing.cancel(self._run(request).path, request.query_params.get("id", ""))
        return {}

    def note(self, request: Request, given: dict[str, Any]) -> Any:
        """Change the note of a session (`id`), or of the run; what is given is a `NoteChange`."""
        run, id_ = self._run(request), request.query_params.get("id")
        name = RUN if id_ is None else self._session(request).session.id
        return run.notes.put(name, validate(given, NoteChange)).json()

    def score(self, request: Request, given: dict[str, Any]) -> Any:
        """Change the score of a session (`id`) of an evaluation; what is given is a `ScoreChange`."""
        run, session = self._run(request), self._session(request).session
        change = validate(given, ScoreChange)
        return asdict(edits.add(run.path, session.id, change.score, change.why, change.who, was=change.was))

    # ------------------------------------------------------------------------------------- lookups

    def _run(self, request: Request) -> Run:
        return self._runs.get(request.query_params.get("run", ""))

    def _session(self, request: Request) -> Replayed:
        """A session with its replays, read again where one of them has changed."""
        run, id_ = self._run(request), request.query_params.get("id", "")
        store = run.store()
        rows = store.find({"id": id_}, limit=1).rows
        replays = replayed.stamp(run, id_)
        stamp = [(row.nodes, row.status, row.score) for row in rows] + replays
        with self._lock:
            kept = self._kept.get((run.name, id_))
        if kept is not None and kept[0] == stamp:
            return kept[1]
        found = replayed.with_replays(run, store.load(id_), [name for name, *_ in replays])
        with self._lock:
            self._kept[run.name, id_] = stamp, found
            while len(self._kept) > KEPT_SESSIONS:
                self._kept.popitem(last=False)
        return found


def _rows(run: Run, summaries: list[Summary]) -> dict[str, Any]:
    """A page of sessions with their notes, the edits of their scores, and who played; and the run's policies."""
    notes, changed = run.notes.of([summary.id for summary in summaries]), run.edits()
    rows = [
        {
            **asdict(row),
            "note": notes.get(row.id, TaggedNote()).json(),
            "edits": changed.get(row.id, []),
            "played": find_players(run, row.agents),
        }
        for row in summaries
    ]
    return {"rows": rows, "policies": policies(run)}


def _whole(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.isdecimal():
        raise InvalidInput(f"{name}={text!r} is no number")
    return int(text)


def _seconds(request: Request, name: str, default: float) -> float:
    text = request.query_params.get(name, str(default))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise InvalidInput(f"{name}={text!r} is no number of seconds from 0 on")
    return seconds


def _nodes(request: Request) -> list[int]:
    texts = request.query_params.getlist("node")
    if not texts or not all(text.isdecimal() for text in texts):
        raise InvalidInput(f"node={','.join(texts)!r} must be a node's number")
    return [int(text) for text in texts]


def _answer(make: Callable[[Request], Any]) -> Callable[[Request], Response]:
    def handle(request: Request) -> Response:
        return Response(orjson.dumps(make(request)), media_type="application/json")

    return handle


def _changes(viewer: Viewer) -> list[Route]:
    return [
        Route("/api/replay", _take_change(viewer.start_replay), methods=["POST"]),
        Route("/api/replay/cancel", _take_change(viewer.cancel_replay), methods=["POST"]),
        Route("/api/note", _take_change(viewer.note), methods=["POST"]),
        Route("/api/score", _take_change(viewer.score), methods=["POST"]),
    ]


def _take_change(change: Callable[[Request, dict[str, Any]], Any]) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        given = await _body(request)
        return Response(orjson.dumps(await run_in_threadpool(change, request, given)), media_type="application/json")

    return handle


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object that a page sends."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise InvalidInput("what is sent must be application/json")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY:
            raise InvalidInput(f"what is sent has over {MOST_BODY:,} bytes")
    try:
        given = read_json(body)
    except ValueError as error:
        raise InvalidInput(f"what is sent is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise InvalidInput("what is sent must be an object")
    return given


def _answer_failure(request: Request, error: AgentRLError) -> Response:
    """A failure as JSON that the page shows."""
    code = 404 if isinstance(error, UnknownName) else 400 if error.blame is Blame.USER else 500
    return Response(orjson.dumps({"error": str(error)}), code, media_type="application/json")


def _static() -> list[Route]:
    """A route for each of the page's files: they are read once, and no path comes from a request."""
    files: Mapping[str, bytes] = {
        file.name: file.read_bytes() for file in (resources.files("agentrl.viewer") / "static").iterdir()
    }
    return [
        Route("/" if name == "index.html" else f"/static/{name}", _file(data, TYPES[name.rpartition(".")[2]]))
        for name, data in files.items()
    ]


def _file(data: bytes, kind: str) -> Callable[[Request], Response]:
    def handle(request: Request) -> Response:
        return Response(data, media_type=kind)

    return handle
