"""A run's files as its verification reads them, and what each of its steps trained on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from agentrl.config import RunConfig
from agentrl.config.secrets import hidden
from agentrl.envs.data import identity
from agentrl.envs.data.identity import Identities
from agentrl.errors import ConfigError, StoreError
from agentrl.overrides import validate
from agentrl.rollout.stream.outcomes import REPLAYED, TRAINED, GroupOutcome
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree.perspective import group_seen_by
from agentrl.train.driver.resuming import as_read_today, check_formats
from agentrl.train.record import kept_code, ledger, provenance
from agentrl.train.record.data_identity import STARTS
from agentrl.train.record.ledger import Entry
from agentrl.train.record.provenance import Published, Trained
from agentrl.train.record.state import last_attempts
from agentrl.types import MAIN, Group, Task

Row = dict[str, Any]


@dataclass(frozen=True)
class Recorded:
    """A run's record but for its sessions.

    Attributes:
        run: the folder.
        rows: of metrics, in the file's order.
        entries: of the ledger, up to the last row's step.
        published: what engines were given, with the steps, likewise.
        trained: what each step trained on, in the file's order.
        starts: the step after which each process trained, and its settings.
        data: the identities of the data of each of these; empty where it recorded none.
        code: the digests of the Python files that each of these had copied, by name.
        sealed: whether each of these sealed what it wrote (`train.record.seals`).
        secrets: the names of settings that are not recorded; in `starts` they have their defaults.
        weights: what engines were given, by version and incarnation.
        policy: whose publications and steps they are.
        others: the record of each policy that learned beside the main one.
    """

    run: Path
    rows: list[Row]
    entries: list[Entry]
    published: list[tuple[int, Published]]
    trained: list[tuple[int, Trained]]
    starts: list[tuple[int, RunConfig]]
    data: list[Identities]
    code: list[dict[str, str]]
    sealed: list[bool]
    secrets: frozenset[str]
    weights: dict[tuple[int, int], Published] = field(default_factory=dict)
    policy: str = MAIN
    others: tuple[Recorded, ...] = ()

    @classmethod
    def read(cls, run: Path) -> Recorded:
        """The record of a run.

        Raises:
            ConfigError: there is no run, or a file of it can't be read.
            NewerFormat: a later agentrl wrote it.
        """
        for needed in ("config.yaml", STARTS):
            if not (run / needed).is_file():
                raise ConfigError(f"{str(run)!r}: no run there that was trained ({needed} is missing)")
        check_formats(run)
        rows = _lines(run / "metrics.jsonl")
        last = max((int(row["step"]) for row in rows), default=0)
        entries = [entry for entry in ledger.read(run) if entry.step <= last]
        published: list[tuple[int, Published]] = []
        trained: list[tuple[int, Trained]] = []
        for step, found in provenance.read(run):
            if isinstance(found, Published):
                published.append((step, found))
            elif step <= last:
                trained.append((step, found))
        lines = _lines(run / STARTS)
        settings = [(int(line["step"]), line["settings"]) for line in lines]
        data = [identity.read(line.get(identity.KEY, {})) for line in lines]
        code = [line.get("code", {}) for line in lines]
        sealed = [bool(line.get("sealed")) for line in lines]
        secrets = frozenset(name for _, tree in settings for name in hidden(tree))
        starts = [(step, _validated(kept_code.usable(run, tree))) for step, tree in settings]
        whole = cls(run, rows, entries, published, trained, starts, data, code, sealed, secrets)
        others = (whole._of_policy(name) for name in starts[-1][1].learned)
        return replace(whole._of_policy(MAIN), others=tuple(others))

    def _of_policy(self, name: str) -> Recorded:
        published = [(step, each) for step, each in self.published if each.policy == name]
        trained = [(step, each) for step, each in self.trained if each.policy == name]
        rows = self.rows
        if name != MAIN:
            own = f"{name}/"
            rows = [
                {"step": row["step"], "version": row.get(f"{own}version", row["version"])}
                | {metric.removeprefix(own): value for metric, value in row.items() if metric.startswith(own)}
                for row in rows
            ]
        weights = {(each.version, each.incarnation): each for _, each in published}
        return replace(self, rows=rows, published=published, trained=trained, weights=weights, policy=name)

    @property
    def last(self) -> int:
        """The last step that is recorded to the end."""
        return max((int(row["step"]) for row in self.rows), default=0)

    def settings(self, step: int) -> RunConfig:
        """Return the settings that a step (from 1) was taken with."""
        found = next((config for after, config in reversed(self.starts) if after < step), self.starts[0][1])
        return found if self.policy == MAIN else found.of_policy(self.policy)

    def learns(self, step: int) -> bool:
        """Return whether the policy learned in a step, from 1."""
        return self.settings(step).learns(self.policy, step - 1)

    def is_sealed(self, step: int) -> bool:
        """Return whether the process that took a step (from 1) sealed what it wrote."""
        processes = zip(reversed(self.starts), reversed(self.sealed), strict=True)
        return next((sealed for (after, _), sealed in processes if after < step), False)

    def steps(self, store: Store) -> Iterator[Step]:
        """Each step with the groups that it trained on, in order."""
        rows = {int(row["step"]): row for row in self.rows}
        trained = dict(self.trained)
        outcomes: dict[int, list[GroupOutcome]] = defaultdict(list)
        for entry in self.entries:
            if entry.outcome.outcome in (TRAINED, REPLAYED):
                outcomes[entry.step].append(entry.outcome)
        for number in range(1, self.last + 1):
            used = sorted(outcomes[number], key=lambda outcome: outcome.number)
            groups, damaged = [], 0
            for outcome in used:
                try:
                    groups.append(group_of(outcome, store))
                except StoreError:
                    damaged += 1
            config, row, seen = self.settings(number), rows.get(number), groups
            if config.learned:
                seen = [group_seen_by(group, self.policy, config.agents) for group in groups]
            yield Step(number, self, config, used, seen, damaged, row, trained.get(number), groups)


@dataclass(frozen=True, slots=True)
class Step:
    """A step and what it trained on.

    Attributes:
        number: from 1.
        recorded: the run's record.
        config: the settings that it was taken with.
        outcomes: the ledger's, in the order of numbers.
        groups: theirs, with the stored sessions.
        damaged: how many more groups it has, whose sessions can't be read.
        row: of metrics; None where it is missing.
        trained: what provenance says; None where it is missing.
        stored: the groups as they are stored; `groups` are as the record's policy sees them.
    """

    number: int
    recorded: Recorded
    config: RunConfig
    outcomes: list[GroupOutcome]
    groups: list[Group]
    damaged: int
    row: Row | None
    trained: Trained | None
    stored: list[Group]

    @property
    def where(self) -> str:
        """The step's name in messages."""
        return f"step {self.number}"


def group_of(outcome: GroupOutcome, store: Store) -> Group:
    """A group of the ledger with its stored sessions.

    Raises:
        StoreError: reading failed, or a session was damaged.
    """
    sessions = last_attempts(store, outcome.group)
    task = sessions[0].task if sessions else Task(id=outcome.task)
    return Group(
        outcome.group,
        task,
        sessions,
        number=outcome.number,
        attempt=outcome.attempt,
        step=outcome.begun,
        choice=outcome.choice,
    )


def _validated(tree: dict[str, Any]) -> RunConfig:
    """Recorded settings; secrets, which are not recorded, have their defaults."""
    for name in [*hidden(tree)]:
        *sections, key = name.split(".")
        section = tree
        for part in sections:
            section = section[part]
        del section[key]
    return validate(as_read_today(tree), RunConfig)


def _lines(file: Path) -> list[Row]:
    """A file's JSON objects; a torn last line is left out."""
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    try:
        return [orjson.loads(line) for line in lines if line.endswith(b"\n")]
    except ValueError as error:
        raise ConfigError(f"{file} is damaged: {error}") from None
