"""A check that each task is what its number says: one index is one task as long as the data is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import orjson

from agentrl.envs.data import identity
from agentrl.errors import AgentRLError
from agentrl.rollout.stream.outcomes import REPLAYED
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.train.record.verify.recorded import Recorded
from agentrl.train.record.verify.report import Check, Discrepancy
from agentrl.types import Session


@dataclass
class StoredTasks:
    """The tasks of the stored sessions: of each group, and of each number of an evaluation.

    Attributes:
        groups: by the group's id its task's id and a digest of its content, which may be large.
        evaluated: by number, the session, the step and that digest, of each session of an evaluation in a run.
    """

    groups: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    evaluated: dict[int, list[tuple[str, int, bytes]]] = field(default_factory=dict)

    def add(self, session: Session) -> None:
        """Add a session to what is checked."""
        content = hashlib.blake2b(identity.content(session.task), digest_size=16).digest()
        if session.phase == "train":
            self.groups.setdefault(session.group, (session.task.id, content))
        elif session.phase == "eval" and session.group_number is not None and session.step is not None:
            found = session.id, session.step, content
            self.evaluated.setdefault(session.group_number, []).append(found)


class Reader(Protocol):
    """A check that is given each stored session once, so that all is read once."""

    def add(self, session: Session) -> None:
        """Add a session to what is checked."""


def check_store(store: Store, check: Check, *readers: Reader) -> None:
    """Each session is as it was written, and a whole tree; `readers` get those that are."""
    for name in store.ids():
        check.examined["sessions"] += 1
        try:
            tree.check(session := store.load(name))
        except AgentRLError as error:
            check.fault(f"session {name}", str(error))
            continue
        for reader in readers:
            reader.add(session)


def check_data(recorded: Recorded, stored: StoredTasks, check: Check) -> None:
    """Compare the identities that processes recorded, and the tasks of equal numbers, with each other."""
    check.examined["processes"] = len(recorded.processes)
    if lacking := sum(not each.data for each in recorded.processes):
        check.unknown["processes that did not record which data they had"] += lacking
    accepted: list[int] = []
    for before, now in pairwise([each for each in recorded.processes if each.data]):
        changed = identity.differences(before.data, now.data)
        if changed and now.config.accept_changed_data:
            accepted.append(now.after)
            check.unknown[f"data that changed after step {now.after}, which was accepted"] += 1
        elif changed:
            check.fault(f"after step {now.after}", f"the data changed: {'; '.join(changed)}")
    check.faults += _other_tasks(recorded, stored, accepted, check)
    check.faults += _other_evaluated(stored, accepted)


def _other_tasks(recorded: Recorded, stored: StoredTasks, accepted: list[int], check: Check) -> Iterator[Discrepancy]:
    """Groups whose index was another task's before, and those whose stored task is not the ledger's."""
    first: dict[tuple[int, bytes], tuple[str, str, bytes | None]] = {}
    for entry in recorded.entries:
        outcome = entry.outcome
        if outcome.outcome == REPLAYED or any(outcome.begun <= step < entry.step for step in accepted):
            continue  # begun before the data changed, perhaps
        named, content = stored.groups.get(outcome.group, (outcome.task, None))
        where = f"step {entry.step}, group {outcome.group}"
        if named != outcome.task:
            yield Discrepancy(where, f"the ledger has the task {outcome.task!r}, and its sessions {named!r}")
        if not isinstance(outcome.choice, int | list):
            continue
        check.examined["groups"] += 1
        stretch = sum(step < entry.step for step in accepted)
        place = stretch, orjson.dumps(outcome.choice)
        group, task, known = first.setdefault(place, (outcome.group, outcome.task, content))
        if task != outcome.task:
            yield Discrepancy(where, f"task {outcome.choice} was {task!r} in group {group}, and is {outcome.task!r}")
        elif known is not None and content is not None and known != content:
            yield Discrepancy(where, f"task {outcome.choice}, {task!r}, has other data than in group {group}")


def _other_evaluated(stored: StoredTasks, accepted: list[int]) -> Iterator[Discrepancy]:
    """Evaluations that have another task under a number than one before them."""
    for number, found in sorted(stored.evaluated.items()):
        first: dict[int, tuple[str, bytes]] = {}
        for session, step, content in sorted(found, key=lambda each: each[1]):
            if step in accepted:
                continue
            name, known = first.setdefault(sum(after < step for after in accepted), (session, content))
            if known != content:
                what = f"evaluates another task as number {number} than session {name}"
                yield Discrepancy(f"evaluation after step {step}, session {session}", what)
                break
