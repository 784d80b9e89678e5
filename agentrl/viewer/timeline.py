"""A run on one axis of time: phases of steps, requests on each engine, calls of environments, sessions."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import orjson

from agentrl.train.display.panel import PHASES
from agentrl.types import MAIN
from agentrl.viewer.distribution import select_rows
from agentrl.viewer.runs import Run
from agentrl.viewer.series import Row

MOST_SESSIONS = 400
"""Sessions that are drawn one by one; where there are more, they are only counted."""
MOST_STEPS = 400
"""Steps that are drawn with their phases, in one answer; where there are more, every n-th is."""
_SELECT = (
    "SELECT id, started, ended, status, phase, score, step FROM summaries WHERE started IS NOT NULL ORDER BY started"
)
BINS = 240
"""Points in time at which what is under way is counted."""
MOST_NODES = 100_000
"""Nodes that are read for a picture; where there are more, a shorter time has to be chosen."""
MOST_ENGINES = 16
"""Engines with a lane of their own; the others share one."""
ENVIRONMENTS, OTHERS = "environments", "other engines"
_WITHIN = "started <= ? AND (ended IS NULL OR ended >= ?)"
_COUNT = f"SELECT coalesce(sum(nodes), 0) FROM summaries WHERE {_WITHIN}"
_TURNS = f"SELECT turn FROM summaries JOIN nodes USING (session) WHERE {_WITHIN} AND turn IS NOT NULL"
Span = tuple[float, float]


def timeline(run: Run, low: float = 0.0, high: float = math.inf) -> dict[str, Any]:
    """A run's course between two times.

    A run that was resumed has a gap where no process of it was there.

    Returns:
        `began`, in seconds since 1970, `length`, and `low` and `high` within it, in seconds since then, as all other
        times; `steps`: [step, version, [[phase, from, to], ...]]; `warm_start`: [from, to], or None; `under_way`:
        counts of sessions at equal distances from `low` to `high`; `lanes`: the same of requests and calls
        (`busy_lanes`), or None where they are too many; `sessions`: [id, from, to, status, phase, score, step, lane],
        where no two of a lane overlap, or None where there are too many to draw.
    """
    steps = [step for row in run.metrics.rows() if (step := _step(row))]
    sessions = select_rows(run.database, _SELECT) if run.database.exists() else []
    begins: list[float] = [phases[0][1] for _, _, phases in steps[:1]] + [row[1] for row in sessions[:1]]
    ends = [phases[-1][2] for _, _, phases in steps[-1:]] + [row[2] or row[1] for row in sessions]
    if not begins:
        nothing: dict[str, Any] = {key: [] for key in ("steps", "under_way", "lanes", "sessions")}
        return {"began": None, "length": 0.0, "low": 0.0, "high": 0.0, "warm_start": None, **nothing}
    imitated = _warm_start(run)
    began, last = min(begins), max(ends)
    length = max(last - began, 1e-3)
    low = min(low, length)
    high = max(min(high, length), low + 1e-3)
    shown = [(id_, start - began, (end or last) - began, *more) for id_, start, end, *more in sessions]
    shown = [row for row in shown if row[1] <= high and row[2] >= low]
    seen = [
        [step, version, [[name, start - began, end - began] for name, start, end in phases]]
        for step, version, phases in steps
        if phases[0][1] - began <= high and phases[-1][2] - began >= low
    ]
    return {
        "began": began,
        "length": length,
        "low": low,
        "high": high,
        "steps": seen[:: math.ceil(len(seen) / MOST_STEPS) or 1],
        "warm_start": imitated and [imitated[0] - began, (imitated[1] or last) - began],
        "under_way": under_way(((start, end) for _, start, end, *_ in shown), low, high),
        "lanes": busy_lanes(run.database, began + low, began + high) if sessions else [],
        "sessions": list(_in_lanes(shown)) if len(shown) <= MOST_SESSIONS else None,
    }


def _warm_start(run: Run) -> tuple[float, float | None] | None:
    """The time when the trainer imitated demonstrations; None where it did not, or an older agentrl wrote the run."""
    try:
        times = orjson.loads((run.path / "warm_start.json").read_bytes())
        return float(times["began"]), times["ended"] and float(times["ended"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _step(row: Row) -> tuple[int, float | None, list[tuple[str, float, float]]] | None:
    """A step's number, version and phases, one behind the other; None for a row that has no times."""
    ended, took = row.get("time/ended"), row.get("time/step")
    if not isinstance(ended, float | int) or not isinstance(took, float | int):
        return None
    known = [(name, row[f"time/{name}"]) for name in PHASES if isinstance(row.get(f"time/{name}"), float | int)]
    ends = [*accumulate((seconds for _, seconds in known), initial=ended - took)]
    phases = [(name, ends[place], ends[place + 1]) for place, (name, _) in enumerate(known)]
    return row["step"], row.get("version"), phases or [("step", ended - took, ended)]


def _in_lanes(sessions: Iterable[tuple[Any, ...]]) -> Iterator[list[Any]]:
    """The sessions, by their beginnings, each with the lowest lane that is free."""
    free, busy, lanes = list[int](), list[tuple[float, int]](), 0
    for row in sessions:
        while busy and busy[0][0] <= row[1]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, lanes)
            lanes += 1
        lane = heapq.heappop(free)
        heapq.heappush(busy, (row[2], lane))
        yield [*row, lane]


def busy_lanes(
    store: Path, low: float, high: float, most_nodes: int = MOST_NODES
) -> list[tuple[str, list[int]]] | None:
    """Requests under way on each engine, and calls of environments, at `BINS` points from `low` to `high`.

    A turn that several engines generated, one after the other, counts on each of them for its whole time.

    Returns:
        Names and counts: engines, then the environments. A single engine is called "engine", and that of a frozen
        policy by the policy's name. None where there is too much to be read.
    """
    within = (high, low)
    ((nodes,),) = select_rows(store, _COUNT, within)
    if nodes > most_nodes:
        return None
    engines, environments = defaultdict[str, list[Span]](list), list[Span]()
    for (text,) in select_rows(store, _TURNS, within):
        turn: dict[str, Any] = orjson.loads(text)
        timings = turn.get("timings") or {}
        if (began := timings.get("began")) is None:
            continue
        if "generation" in timings:
            for name in turn.get("engines") or [turn["policy"] if turn.get("policy") not in (None, MAIN) else "engine"]:
                engines[name].append((began, began + timings["generation"]))
        elif "env" in timings:
            environments.append((began, began + timings["env"]))
    named = sorted(engines, key=lambda name: (len(name), name))
    if len(named) > MOST_ENGINES:
        engines[OTHERS] = [span for name in named[MOST_ENGINES - 1 :] for span in engines[name]]
        named = [*named[: MOST_ENGINES - 1], OTHERS]
    busy = [(name, engines[name]) for name in named] + [(ENVIRONMENTS, environments)] * bool(environments)
    return [(name, under_way(spans, low, high)) for name, spans in busy]


def under_way(spans: Iterable[Span], low: float, high: float) -> list[int]:
    """Count the spans, from and to, that hold each of `BINS` times from `low` to `high`, both included."""
    changes = [0] * (BINS + 1)
    scale = (BINS - 1) / (high - low)
    for start, end in spans:
        first, last = math.ceil((start - low) * scale), math.floor((end - low) * scale)
        if last >= max(first, 0) and first < BINS:
            changes[max(first, 0)] += 1
            changes[min(last, BINS - 1) + 1] -= 1
    return list(accumulate(changes[:BINS]))
