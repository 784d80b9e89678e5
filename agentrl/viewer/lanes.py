"""The load of each engine, and of the environments, at points in time, from the timings that nodes have."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any

import orjson

from agentrl.types import MAIN
from agentrl.viewer.distribution import select_rows

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


def busy_lanes(
    store: Path, low: float, high: float, most_nodes: int = MOST_NODES
) -> list[tuple[str, list[int]]] | None:
    """Requests under way on each engine, and calls of environments, at `BINS` points from `low` to `high`.

    A turn that several engines generated, one after the other, counts on each of them for its whole time.

    Args:
        store: the run's sessions.
        low: seconds since 1970; so is `high`.
        high: the last point.
        most_nodes: how many nodes of that time are read.

    Returns:
        Names and counts: engines, then the environments. A single engine is called "engine", and that of a frozen
        policy by the policy's name. None where there is too much to be read.

    Raises:
        StoreError: reading failed.
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
