"""The numbers of a run's sessions that have each value of what they are filtered by."""

from __future__ import annotations

from typing import Any

from agentrl.viewer.distribution import selected
from agentrl.viewer.runs import Run

COLUMNS = ("status", "phase", "environment", "blame")
AGENTS = "SELECT value, count(*) FROM summaries, json_each(agents) GROUP BY value"
KEEPS_CALLS = "SELECT 1 FROM sqlite_master WHERE name = 'calls'"
TOOLS = "SELECT tool, count(*) FROM calls GROUP BY tool ORDER BY 2 DESC, 1 LIMIT 100"
"""The most used ones: a model can call tools by any name."""


def facets(run: Run) -> dict[str, dict[str, int]]:
    """The counts by filter and value.

    Raises:
        ConfigError: the run has no sessions.
        StoreError: they can't be read.
    """
    store, file = run.store(), run.database
    found: dict[str, dict[str, int]] = {
        name: {str(key): count for key, count in store.counts(name).items() if key} for name in COLUMNS
    }
    tools: list[tuple[Any, ...]] = selected(file, TOOLS) if selected(file, KEEPS_CALLS) else []
    return {**found, "agent": dict(selected(file, AGENTS)), "tool": dict(tools), "tag": run.notes.counts()}
