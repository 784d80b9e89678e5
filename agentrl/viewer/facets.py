"""The numbers of a run's sessions: by each value of what they are filtered by, and by who played whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import product
from statistics import fmean
from typing import Any

import orjson

from agentrl.types import MAIN
from agentrl.viewer.distribution import select_rows
from agentrl.viewer.runs import Run

COLUMNS = ("status", "phase", "environment", "blame")
AGENTS = "SELECT value, count(*) FROM summaries, json_each(agents) GROUP BY value"
KEEPS_CALLS = "SELECT 1 FROM sqlite_master WHERE name = 'calls'"
TOOLS = "SELECT tool, count(*) FROM calls GROUP BY tool ORDER BY 2 DESC, 1 LIMIT 100"
"""The most used ones: a model can call tools by any name."""
NEWEST = 2000
"""Sessions that are looked at, at most."""
SPOKE = """
SELECT newest.key, nodes.agent, json_extract(nodes.turn, '$.policy'), json_extract(newest.head, '$.agent_rewards'),
    json_extract(newest.head, '$.partner_rewards')
FROM (
    SELECT key, head FROM sessions WHERE json_extract(head, '$.phase') IN ('train', 'eval') ORDER BY key DESC LIMIT ?
) AS newest JOIN nodes ON nodes.session = newest.key
WHERE json_extract(nodes.turn, '$.policy') IS NOT NULL GROUP BY 1, 2, 3
"""


def facets(run: Run) -> dict[str, dict[str, int]]:
    """The counts by filter and value."""
    store, file = run.store(), run.database
    found: dict[str, dict[str, int]] = {
        name: {str(key): count for key, count in store.counts(name).items() if key} for name in COLUMNS
    }
    tools: list[tuple[Any, ...]] = select_rows(file, TOOLS) if select_rows(file, KEEPS_CALLS) else []
    return {**found, "agent": dict(select_rows(file, AGENTS)), "tool": dict(tools), "tag": run.notes.counts()}


def policies(run: Run) -> list[str]:
    """Return the names of a run's policies, the main one first."""
    named = (name.split(".")[1] for name in run.settings() if name.startswith("policies."))
    return list(dict.fromkeys([MAIN, *named]))


def find_players(run: Run, agents: Iterable[str]) -> list[str]:
    """Return the policies that the run gave these agents to; of earlier versions the name that they share."""
    settings = run.settings()
    given = (str(settings.get(f"agents.{agent.partition('/')[0]}", MAIN)) for agent in agents)
    return list(dict.fromkeys(given))


def players(run: Run) -> dict[str, Any]:
    """Return how policies fared against each other in the newest sessions, earlier versions each by itself.

    Returns:
        `policies`, those that spoke; `cells`, of each pair that met its names, how many sessions it shared, and the
        mean reward of the first one's agents in them (None where nothing was rewarded). A policy meets itself where it
        played two agents.
    """
    run.store()
    met: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    spoke: dict[int, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    rewards: dict[int, dict[str, Any]] = {}
    for key, agent, policy, own, others in select_rows(run.database, SPOKE, (NEWEST,)):
        spoke[key][policy].add(agent.partition("/")[0])
        rewards[key] = {**orjson.loads(others or "{}"), **orjson.loads(own or "{}")}
    for key, agents in spoke.items():
        for one, other in product(agents, repeat=2):
            if one != other or len(agents[one]) > 1:
                given = [rewards[key].get(agent) for agent in sorted(agents[one])]
                met[one, other].append([value for value in given if value is not None])
    known = policies(run)
    order = {name: place for place, name in enumerate(known)}
    found = sorted({name for each in spoke.values() for name in each}, key=lambda name: _place(name, order))
    cells = []
    for one, other in product(found, repeat=2):
        if sessions := met.get((one, other)):
            every = [value for values in sessions for value in values]
            cells.append([one, other, len(sessions), fmean(every) if every else None])
    return {"policies": found, "cells": cells}


def _place(name: str, order: dict[str, int]) -> tuple[int, int, str]:
    """The place of a policy, or of an earlier version of one (`NAME/STEP`)."""
    base, _, version = name.partition("/")
    return order.get(base, len(order)), int(version) if version.isdecimal() else 0, name
