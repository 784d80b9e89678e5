"""Changes behind a run's back to what its steps were trained on: tokens, versions, groups, credit, publications.

Checksums fit, where whoever plants them can make them fit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.sessions.store.store import Store
from agentrl.train.record import ledger, provenance
from agentrl.types import Session, Status, VersionSpan
from tests.train.verified.planted import in_lines


def sql(run: Path, *statements: str) -> None:
    """Change the store behind its back."""
    with sqlite3.connect(run / "sessions.db") as db:
        db.execute("DROP TRIGGER tokens_are_final")
        for statement in statements:
            db.execute(statement)


def edit(run: Path, change: Callable[[Session], None]) -> None:
    """Change a session that step 2 trained, with checksums that fit."""
    with Store(run / "sessions.db") as store:
        session = store.load(trained_session(run))
        change(session)
        store.save(session, replace=True)


def trained_session(run: Path) -> str:
    """One with a reward that step 2 gave credit to."""
    rows = (found for step, found in provenance.read(run) if step == 2)
    line = next(found for found in rows if isinstance(found, provenance.Trained))
    return next(name for name, score in line.scores.items() if score and name in line.credit)


def sampled_turn(session: Session) -> Any:
    return next(node for node in session.nodes if node.sampled)


def lines(run: Path, change: Callable[[dict[str, Any]], object], *, name: str = provenance.NAME) -> None:
    """Change the lines of a file; see `in_lines`."""
    in_lines(name, change)(run)


def swapped_token(run: Path) -> None:
    sql(run, f"UPDATE nodes SET token_ids = zeroblob(length(token_ids)) WHERE id = 1 AND session = {key(run)}")


def key(run: Path) -> int:
    with sqlite3.connect(run / "sessions.db") as db:
        return int(db.execute("SELECT key FROM sessions WHERE id = ?", (trained_session(run),)).fetchone()[0])


def swapped_token_with_its_checksum(run: Path) -> None:
    def change(session: Session) -> None:
        sampled_turn(session).token_ids[-1] ^= 1

    edit(run, change)


def swapped_token_of_a_prompt(run: Path) -> None:
    def change(session: Session) -> None:
        session.nodes[0].token_ids[0] ^= 1

    edit(run, change)


def edited_log_probability(run: Path) -> None:
    def change(session: Session) -> None:
        sampled_turn(session).logprobs[-1] -= 0.5

    edit(run, change)


def unknown_version(run: Path) -> None:
    def change(session: Session) -> None:
        sampled_turn(session).versions = [VersionSpan(77, s.start, s.end) for s in sampled_turn(session).versions]

    edit(run, change)


def later_version(run: Path) -> None:
    def change(session: Session) -> None:
        sampled_turn(session).versions = [VersionSpan(2, s.start, s.end) for s in sampled_turn(session).versions]

    edit(run, change)


def group_that_was_too_old(run: Path) -> None:
    def change(row: dict[str, Any]) -> None:
        row["begun"] -= 3 * (row["step"] == 3)

    lines(run, change, name=ledger.NAME)


def doubled_session(run: Path) -> None:
    with Store(run / "sessions.db") as store:
        session = store.load(trained_session(run))
        session.id, session.sample = "copy", 9
        store.save(session)


def session_trained_in_two_steps(run: Path) -> None:
    moved: dict[str, Any] = {}

    def change(row: dict[str, Any]) -> None:
        if "trained" in row and row["step"] == 2:
            moved.update(row["trained"]["credit"])
        elif "trained" in row and row["step"] == 3:
            row["trained"]["credit"].update(moved)

    lines(run, change)


def missing_session(run: Path) -> None:
    with Store(run / "sessions.db") as store:
        store.delete(trained_session(run))


def lost_turn(run: Path) -> None:
    sql(run, f"DELETE FROM nodes WHERE id = 1 AND session = {key(run)}")


def reward_of_an_infrastructure_failure(run: Path) -> None:
    def change(session: Session) -> None:
        session.status, session.error = Status.INFRA_ERROR, "the engine died"

    edit(run, change)


def edited_reward(run: Path) -> None:
    def change(session: Session) -> None:
        session.reward = (session.reward or 0.0) + 1

    edit(run, change)


def _share(run: Path, place: int) -> None:
    session = trained_session(run)

    def change(row: dict[str, Any]) -> None:
        if "trained" in row and row["step"] == 2:
            next(iter(row["trained"]["credit"][session].values()))[0][place] += 0.25

    lines(run, change)


def edited_advantage(run: Path) -> None:
    _share(run, 0)


def edited_weight(run: Path) -> None:
    _share(run, 1)


def other_tokens_than_those_of_the_store(run: Path) -> None:
    lines(run, lambda row: row.get("trained", {}).update(forests="00" * 16))


def credit_without_a_record(run: Path) -> None:
    lines(run, lambda row: [] if "trained" in row and row["step"] == 2 else None)


def group_trained_twice(run: Path) -> None:
    lines(run, lambda row: [row, {**row, "step": 3}] if row["step"] == 2 else None, name=ledger.NAME)


def group_that_vanished(run: Path) -> None:
    lines(run, lambda row: [] if row["step"] == 1 else None, name=ledger.NAME)


def weights_that_never_arrived(run: Path) -> None:
    stale: dict[str, str] = {}

    def change(row: dict[str, Any]) -> None:
        if "published" in row and row["published"]["version"] == 1:
            stale.update(row["published"]["checksums"])
        elif "published" in row and row["published"]["version"] == 2:
            row["published"]["checksums"] = stale

    lines(run, change)


def one_engine_with_other_weights(run: Path) -> None:
    lines(run, lambda row: _published(row, 2) and row["published"]["checksums"].update({"engine-1": "00"}))


def unrecorded_publication(run: Path) -> None:
    lines(run, lambda row: [] if _published(row, 2) else None)


def stale_cache(run: Path) -> None:
    lines(run, lambda row: _published(row, 2) and row["published"].update(caches="kept"))


def failed_probe(run: Path) -> None:
    lines(run, lambda row: _published(row, 2) and row["published"].update(probe=0.7))


def _published(row: dict[str, Any], version: int) -> bool:
    return "published" in row and row["published"]["version"] == version


def engine_that_disagrees_with_the_trainer(run: Path) -> None:
    lines(run, lambda row: row["step"] == 2 and row.update({"mismatch/abs_mean": 0.3}), name="metrics.jsonl")


def edited_metrics(run: Path) -> None:
    lines(run, lambda row: row["step"] == 2 and row.update({"reward/mean": 1.0}), name="metrics.jsonl")


def missing_metrics(run: Path) -> None:
    lines(run, lambda row: [] if row["step"] == 2 else None, name="metrics.jsonl")


def changed_checkpoint(run: Path) -> None:
    file = next((run / "checkpoints").glob("step-000003/*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.unlink()
    file.write_bytes(data)


PLANTED: dict[Callable[[Path], None], tuple[str, str]] = {
    swapped_token: ("store", "{session}.*does not match its checksum"),
    swapped_token_with_its_checksum: ("groups", "step 2 trained {group}, of which the store has other"),
    swapped_token_of_a_prompt: ("tokens", "step 2: trained tokens with the hash"),
    edited_log_probability: ("tokens", "step 2: trained tokens with the hash"),
    unknown_version: ("versions", "{session}, turn 1: generated by version 77, which no engine was given"),
    later_version: ("versions", "{session}, turn 1: generated by version 2, and the trainer had version 1"),
    group_that_was_too_old: ("versions", "step 3, group .* more than 0 steps before"),
    doubled_session: ("sessions", "step 2, group {group}: 4 sessions are stored, not 3"),
    session_trained_in_two_steps: ("sessions", "step 3, session {session}: trained a second time, after step 2"),
    missing_session: ("sessions", "step 2, group {group}: 2 sessions are stored, not 3"),
    lost_turn: ("store", "session {session}"),
    reward_of_an_infrastructure_failure: ("sessions", "{session}: it ended in an infrastructure error, and counts"),
    edited_reward: ("rewards", "step 2, session {session}: trained with score"),
    edited_advantage: ("credit", "step 2, session {session}, turn 1: trained with advantage"),
    edited_weight: ("credit", "step 2, session {session}, turn 1: trained with advantage"),
    other_tokens_than_those_of_the_store: ("tokens", "step 1: trained tokens with the hash 0000"),
    credit_without_a_record: ("sessions", "step 2: no record of what it trained on"),
    group_trained_twice: ("groups", "has the attempts .*; they must be 0, 1"),
    group_that_vanished: ("groups", "was begun before step-000003, and neither trained"),
    weights_that_never_arrived: ("weights", "version 2: the engines' weights are those of version 1"),
    one_engine_with_other_weights: ("weights", "version 2: engines have other weights than each other"),
    unrecorded_publication: ("weights", "step 2: version 2 was given to no engine"),
    stale_cache: ("weights", "version 2: engines kept caches of older weights, which weights.mode=.* drops"),
    failed_probe: ("weights", "version 2: the probe found 0.7"),
    engine_that_disagrees_with_the_trainer: ("metrics", "step 2: engine and trainer disagree"),
    edited_metrics: ("metrics", "step 2, reward/mean: logged 1.0"),
    missing_metrics: ("files", "metrics.jsonl: step 2 is there 0 times"),
    changed_checkpoint: ("files", "checkpoints/step-000003: model.safetensors has changed"),
}
"""Each with the check that has to name it, and in which words: `{session}` is one that step 2 trained."""
