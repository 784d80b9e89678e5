"""A check that a run's data is what it began with: when it is resumed, run again, verified or compared.

`starts.jsonl` has the identity of the data (`envs.data.identity`) of each process that trained; the ledger has which
task each group got for which index, which is all that runs of before have. A change is refused: the groups to come
would have other tasks than the run says, and a pass over the data would be none. `accept_changed_data=true` accepts it
once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentrl.envs.base import Env
from agentrl.envs.data import identity
from agentrl.envs.data.identity import Identities
from agentrl.envs.data.mixture import list_mixed
from agentrl.errors import ConfigError
from agentrl.rollout.stream.tasks import TaskStream
from agentrl.train.record import ledger
from agentrl.train.record.files import read_rows
from agentrl.train.record.ledger import Entry

STARTS = "starts.jsonl"
COMPARED = 1024
"""Lines of a ledger whose tasks are looked up, from its end."""


def read_starts(run: Path) -> list[dict[str, Any]]:
    """Each process of a run as it began: its `step`, `settings` and what else it recorded.

    Raises:
        ConfigError: a line is damaged, or lacks one of these.
    """
    return read_rows(run / STARTS, lambda row: {**row, "step": int(row["step"]), "settings": dict(row["settings"])})


def read_identities(run: Path) -> Identities:
    """The identities that a run's last process recorded; empty where none did, as of an older agentrl."""
    found = read_rows(run / STARTS, lambda row: identity.read(row[identity.KEY]) if row.get(identity.KEY) else {})
    return next(filter(None, reversed(found)), {})


def check_same(
    resume: str | None, rerun: str | None, env: Env | None, found: Identities, *, accept_changed: bool
) -> list[str]:
    """Compare a run's data with that of the run which it resumes or repeats.

    Returns:
        Lines that are to be shown.
    """
    name = "resume" if resume else "rerun"
    if (run := resume or rerun) is None:
        return []
    before = read_identities(Path(run))
    old = list(_other_tasks(Path(run), env)) if env is not None and not before else []
    changed = identity.differences(before, found) if before else old
    if not changed:
        return [] if before else [f"{run} does not say which data it had; the tasks that it trained are still there"]
    what = f"{name}={run}: the data changed since: {'; '.join(changed)}"
    if accept_changed:
        return [f"warning: {what} (accept_changed_data=true)"]
    raise ConfigError(
        f"{what}. Groups would have other tasks than the run says. Give it the data that it had, or begin a new run; "
        "accept_changed_data=true goes on with the changed data"
    )


def _other_tasks(run: Path, env: Env) -> Iterator[str]:
    """The first group of a ledger whose index is another task's now, in words."""
    sources = {name: TaskStream(part, "train", 0) for name, part in list_mixed(env).items()}
    for entry in ledger.read(run)[-COMPARED:]:
        name, index = _place(entry)
        stream = sources.get(name)
        if stream is None or not isinstance(index, int) or not len(stream):
            continue
        now = stream.at(index).id if 0 <= index < len(stream) else None
        if now != entry.outcome.task:
            known = f"is {now!r} now" if now is not None else f"is none of the {len(stream)} that there are now"
            yield f"step {entry.step} trained task {index}, {entry.outcome.task!r}, which {known}"
            return


def _place(entry: Entry) -> tuple[str, Any]:
    """The part of a mixture, '' elsewhere, and the index of a group's task."""
    choice = entry.outcome.choice
    if isinstance(choice, Sequence) and not isinstance(choice, str) and len(choice) == 2:
        return str(choice[0]), choice[1]
    return "", choice
