"""A request's words about sessions, as filters of the store.

    status=truncated&status=agent_error&score=0..0.5&step=40..&task~=9*14&trained=41&tag=bug
    where=score < 1 and data.level == "hard"

`NAME=` with several values means any of them, `LOW..HIGH` a range whose ends may be left out, `~` contained text, and
an empty value absence. `phase=played` are the sessions that a policy played: all but a warm start's demonstrations, in
a run that has others. `trained=N` are the sessions that step N trained on, by the run's ledger, and `tag=NAME` those
that people gave the tag (`notes`). Each `where=` is a condition in words (`sessions.store.expressions`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from agentrl.errors import InvalidInput
from agentrl.sessions.store.query import WHERE, Between, Contains, Filters, Without
from agentrl.sessions.store.store import Store
from agentrl.train.record import ledger
from agentrl.viewer.runs import Run

CONTROL = frozenset({"run", "sort", "descending", "limit", "after", "text", "by"})
"""Parameters that are no filters."""
TRAINED, TAG = "trained", "tag"
PLAYED, DEMO = "played", "demo"
"""Stands for all phases but a warm start's demonstrations, whose phase is the second."""


def filters_of(run: Run, parameters: Iterable[tuple[str, str]]) -> Filters:
    """The filters of a request.

    Raises:
        InvalidInput: a range has an end that is no number.
    """
    values: dict[str, list[str]] = defaultdict(list)
    found: dict[str, Any] = {}
    for name, value in parameters:
        if name.endswith("~"):
            found[name[:-1]] = Contains(value)
        elif name not in CONTROL:
            values[name].append(value)
    for name, each in values.items():
        if name == TRAINED:
            found["group"] = [group for text in each for group in trained_groups(run, _whole(name, text))]
        elif name == "phase" and each == [PLAYED]:
            found[name] = phases_played(run.store())
        elif name == WHERE:
            found[name] = [text for text in each if text.strip()]
        elif name != TAG:
            found[name] = _wanted(name, each)
    if TAG in values:
        tagged = run.notes.tagged(values[TAG])
        found["id"] = [id_ for id_ in tagged if id_ in values["id"]] if "id" in values else tagged
    return found


def phases_played(store: Store) -> Without | str:
    """The phases of the sessions that a policy has played, as demonstrations have no scores of its; else theirs."""
    played = Without(DEMO)
    return played if store.find({"phase": played}, limit=1).rows else DEMO


def trained_groups(run: Run, step: int) -> list[str]:
    """The groups that a step trained on."""
    outcomes = (entry.outcome for entry in ledger.read(run.path) if entry.step == step)
    return [outcome.group for outcome in outcomes if outcome.outcome in ("trained", "replayed")]


def _wanted(name: str, values: list[str]) -> Any:
    if len(values) == 1:
        low, dots, high = values[0].partition("..")
        if dots:
            return Between(_bound(name, low), _bound(name, high))
        if not values[0]:
            return None
    return values  # SQLite converts them to a column's type


def _bound(name: str, text: str) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        raise InvalidInput(f"{name}: {text!r} is no number; a range is LOW..HIGH") from None


def _whole(name: str, text: str) -> int:
    if not text.isdecimal():
        raise InvalidInput(f"{name}={text!r} is no step")
    return int(text)
