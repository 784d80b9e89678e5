"""The files that a run writes, and a check that its records are there when it is resumed.

What is gone is refused, what lacks steps is told. Without its ledger, its provenance, its metrics or its sessions a run
would go on, and never again prove what it was trained on. A file that was removed on purpose is replaced by an empty
one of its name, which says so; what an empty file, or one that was cut, lacks is told.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from agentrl import faults, logs
from agentrl.config import PAST
from agentrl.errors import ConfigError
from agentrl.sessions.store.store import Store
from agentrl.train.record import kept_code, ledger, provenance, ratings, seals, trainer_logprobs
from agentrl.train.record.data_identity import STARTS
from agentrl.train.record.files import read_rows
from agentrl.train.record.provenance import Trained
from agentrl.train.record.seals import HELD_OUT, LOSSES, METRICS, STREAM

SESSIONS = "sessions.db"
HELD = {
    SESSIONS: "every session",
    ledger.NAME: "what became of each group",
    METRICS: "each step's numbers",
    provenance.NAME: "what each step trained on",
    STARTS: "who trained with which settings and data",
    seals.NAME: "digests of all that, as it was written",
}
EVERY_STEP = (METRICS, ledger.NAME, provenance.NAME)
"""The files that each step adds lines to."""
WRITTEN = (
    *(METRICS, ledger.NAME, ratings.NAME, provenance.NAME, STREAM, LOSSES, STARTS, seals.NAME, HELD_OUT),
    *("result.json", "data.json"),
    "learning_curve.png",
    *(SESSIONS, f"{SESSIONS}-wal", f"{SESSIONS}-shm", f"{SESSIONS}-count"),
    *("replays.db", "replays.db-wal", "replays.db-shm", "replays.db-count"),
    *(trainer_logprobs.NAME, f"{trainer_logprobs.NAME}-wal", f"{trainer_logprobs.NAME}-shm"),
    *("tensorboard", "trackers", "transcripts", "model", ".model.partial", PAST, "checkpoints"),
    *(faults.LOG, logs.NAME, kept_code.FOLDER),
)
"""The files of a run, or an evaluation, in its folder beside its settings."""


def check(run: Path, start: int, done: int, losses: str, say: Callable[[str], object]) -> None:
    """Refuse to resume a run whose records are gone, and say which steps they lack."""
    ends = _steps(run)
    if not max(start, done, *ends.values()):
        return
    steps = max(start, done)
    held = HELD if seals.has_promised(run) else {name: what for name, what in HELD.items() if name != seals.NAME}
    if gone := [name for name in held if not (run / name).exists()]:
        files = " ".join(shlex.quote(str(run / name)) for name in gone)
        had = "; ".join(f"{name}, which had {HELD[name]}" for name in gone)
        raise ConfigError(
            f"resume={run}: the run has {max(steps, *ends.values())} steps behind it, and files are gone: {had}. Put "
            f"them back; or, to go on without what they had, make empty ones: touch {files}"
        )
    for name, last in ends.items():
        if last < steps:
            say(f"warning: {name} ends at step {last}, and the run at step {steps}: the others stay missing")
    trained = [each.group for found in ledger.read_trained(ledger.read(run)).values() for each in found]
    if trained and (run / SESSIONS).stat().st_size == 0:
        say(f"warning: {SESSIONS} is empty: the sessions of {len(trained)} trained groups stay missing")
    elif trained:
        with Store(run / SESSIONS, read_only=True) as store:
            kept = set(store.counts("group"))
        lost = [group for group in trained if group not in kept]
        if lost:
            say(f"warning: {SESSIONS} lacks the sessions of {len(lost)} trained groups, the first {lost[0]}")
    known = max((incarnation for _, incarnation in provenance.read_published(run)), default=0)
    if known and not (run / losses).exists():
        raise ConfigError(
            f"resume={run}: {losses} is gone, which says where weights were lost: a version would no longer name "
            "weights. Put it back"
        )


def _steps(run: Path) -> dict[str, int]:
    """The last step that each file has, 0 where it has none or is gone."""
    outcomes = [entry.step for entry in ledger.read(run)]
    evidence = [step for step, found in provenance.read(run) if isinstance(found, Trained)]
    rows = read_rows(run / METRICS, lambda row: row["step"])
    found = {ledger.NAME: outcomes, provenance.NAME: evidence, METRICS: rows}
    return {name: max(map(int, steps), default=0) for name, steps in found.items()}
