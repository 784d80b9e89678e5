"""A run's ledger, `groups.jsonl`: what became of each group that was begun, one JSON object a line.

    {"step": 3, "group": "train-17.0", "number": 17, "attempt": 0, "task": "9*14", "choice": 17, "begun": 1,
     "versions": [1, 2], "outcome": "trained", "hash": "0d6c…"}

`step` is the row of metrics.jsonl that the line belongs to: the step that trained the group, or in which it was
discarded; the other fields are those of `rollout.stream.outcomes.GroupOutcome`. Where several policies learn, `others`
has the versions of those besides the main one, by name. What a step discards before a checkpoint that is saved within
it (SIGTERM) is in the checkpoint's state until the next step's lines. A resumed run removes the lines beyond its
checkpoint, as it does metrics.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from agentrl.errors import AgentRLError
from agentrl.rollout.stream.outcomes import GENERATED_AGAIN, REPLAYED, TRAINED, GroupOutcome
from agentrl.rollout.workers.held import has_content
from agentrl.sessions.store.store import Store
from agentrl.train.driver.resuming import step_of, whole_checkpoints
from agentrl.train.record.files import append, read_rows
from agentrl.train.record.state import last_attempts, read_saved
from agentrl.types import Group, Task

NAME = "groups.jsonl"


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the ledger: how a group left the stream, and in which step (from 1)."""

    step: int
    outcome: GroupOutcome

    def line(self) -> bytes:
        """The entry as a line of the file."""
        return orjson.dumps({"step": self.step, **self.outcome.data()}) + b"\n"


def write(run: Path, step: int, outcomes: Iterable[GroupOutcome]) -> None:
    """Add a step's lines, and flush them to the disk."""
    append(run / NAME, b"".join(Entry(step, outcome).line() for outcome in outcomes))


def read(run: Path) -> list[Entry]:
    """A run's ledger; a torn last line is left out."""
    return read_rows(run / NAME, lambda row: Entry(row["step"], GroupOutcome.read(row)))


def read_trained(entries: Iterable[Entry]) -> dict[int, list[GroupOutcome]]:
    """Return the groups that each step trained, or used again, in the order of their numbers."""
    found = defaultdict[int, list[GroupOutcome]](list)
    for entry in entries:
        if entry.outcome.outcome in (TRAINED, REPLAYED):
            found[entry.step].append(entry.outcome)
    return {step: sorted(outcomes, key=lambda outcome: outcome.number) for step, outcomes in found.items()}


def group_of(outcome: GroupOutcome, store: Store) -> Group:
    """A group of the ledger with its stored sessions."""
    sessions = last_attempts(store, outcome.group)
    task = sessions[0].task if sessions else Task(id=outcome.task)
    return Group(outcome.group, task, sessions, outcome.number, outcome.attempt, outcome.begun, outcome.choice)


def faults(run: Path) -> Iterator[str]:
    """Yield a sentence for each fault of a run's ledger; nothing where it is in order.

    Each number was generated in attempts 0, 1, 2 …; each but the last was discarded for a cause after which it is
    generated again, and the last was trained, discarded for good, or is still to be trained, which the checkpoint's
    state says. Up to the newest checkpoint no number is missing. The sessions of each trained group, as the store has
    them, are those that were trained (by `content_hash`). What is replayed was trained before.
    """
    entries = read(run)
    attempts: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.outcome.outcome != REPLAYED:
            attempts[entry.outcome.number].append(entry)
        elif not any(earlier.outcome.outcome == TRAINED for earlier in attempts[entry.outcome.number]):
            yield f"{entry.outcome.group} was replayed in step {entry.step}, before it was trained"
    for number, found in sorted(attempts.items()):
        yield from _faults_of_number(number, [entry.outcome for entry in found])
    for checkpoint in whole_checkpoints(run):
        yield from _gaps(checkpoint, entries)
    yield from _list_changed(run, entries)


def _faults_of_number(number: int, outcomes: list[GroupOutcome]) -> Iterator[str]:
    if [outcome.attempt for outcome in outcomes] != list(range(len(outcomes))):
        listed = ", ".join(f"{outcome.attempt} ({outcome.outcome})" for outcome in outcomes)
        yield f"group {number} has the attempts {listed}; they must be 0, 1, 2 …, each once"
    for outcome in outcomes[:-1]:
        if outcome.outcome not in GENERATED_AGAIN:
            yield f"group {number} has attempts after {outcome.group}, which was {outcome.outcome}"


def _gaps(checkpoint: Path, entries: list[Entry]) -> Iterator[str]:
    """Numbers that are neither in the ledger nor in the state of a checkpoint, or in both."""
    try:
        state = read_saved(checkpoint)["stream"]
        next_, begun = int(state["next"]), {number: attempt for number, attempt, _ in state["begun"]}
        outcomes = [GroupOutcome.read(outcome) for outcome in state["outcomes"]]
    except (AgentRLError, OSError, ValueError, KeyError, TypeError) as error:
        yield f"{checkpoint.name}: its state can't be read: {error}"
        return
    left = [entry.outcome for entry in entries if entry.step <= step_of(checkpoint)]
    left += outcomes
    over = {outcome.number for outcome in left if outcome.outcome not in GENERATED_AGAIN}
    again: dict[int, int] = defaultdict(int)
    for outcome in left:
        again[outcome.number] = max(again[outcome.number], outcome.attempt + 1)
    if next_ and (beyond := max((*over, *begun), default=-1)) >= next_:  # a rerun counts none
        yield f"group {beyond} was begun before {checkpoint.name}, which would begin {next_} next"
    for number in range(next_):
        if number not in over and number not in begun:
            yield f"group {number} was begun before {checkpoint.name}, and neither trained, discarded nor kept in it"
        if number in over and number in begun:
            yield f"group {number} left the run, and {checkpoint.name} would train it again"
        if number in begun and number not in over and begun[number] != again[number]:
            yield f"group {number} continues in {checkpoint.name} as attempt {begun[number]}, not {again[number]}"


def _list_changed(run: Path, entries: list[Entry]) -> Iterator[str]:
    """Trained groups whose stored sessions are not those that were trained."""
    if not (run / "sessions.db").exists():
        return
    with Store(run / "sessions.db", read_only=True) as store:
        for entry in entries:
            outcome = entry.outcome
            trained = outcome.outcome in (TRAINED, REPLAYED)
            if trained and not has_content(last_attempts(store, outcome.group), outcome.hash):
                yield f"step {entry.step} trained {outcome.group}, of which the store has other sessions"
