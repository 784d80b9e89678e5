"""`agentrl verify`: clean runs of each kind pass, and each planted corruption is found and named."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from agentrl.cli import app, main
from agentrl.config.secrets import HIDDEN
from agentrl.errors import ConfigError, Unproven
from agentrl.sessions.store import Store
from agentrl.train import ledger, provenance
from agentrl.train.credit import Credit, NodeAdvantage
from agentrl.train.provenance import Evidence, Published
from agentrl.train.verify import verify
from agentrl.train.verify.recorded import Recorded
from agentrl.types import MAIN, Group, Session, Status, VersionSpan
from tests.train.test_rerun import WORLD, train
from tests.train.trees import linear_session

SMALL: dict[str, Any] = {
    **{"rollout.groups_per_step": 2, "rollout.group_size": 3, "rollout.turn_tokens": 16, "eval.tasks": 1},
    **{"algo.lr": 1e-3, "checkpoint_every": 1, "keep_checkpoints": 2, "require_provenance": True},
}
ASYNCHRONOUS: dict[str, Any] = {
    **{"rollout.staleness": 1, "rollout.order": "ready", "weights.mode": "abort", "fleet.engines": 2, "steps": 3},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs by kind; the asynchronous one was resumed, after a step whose checkpoint was lost."""
    folder = tmp_path_factory.mktemp("runs")
    world = folder / "world.py"
    world.write_text(WORLD)
    found = {name: folder / name for name in ("synchronous", "resumed")}
    train(env=f"{world}:Dense", **SMALL, steps=2, run_dir=str(found["synchronous"]))
    train(env=f"{world}:Dense", **{**SMALL, **ASYNCHRONOUS}, run_dir=str(found["resumed"]))
    shutil.rmtree(found["resumed"] / "checkpoints" / "step-000003")
    train(resume=str(found["resumed"]), steps=4)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["synchronous", "resumed"])
def test_a_clean_run_passes_and_nothing_of_it_is_unknown(kind: str, runs: dict[str, Path]) -> None:
    report = verify(runs[kind], weights=True)
    assert report.passed, list(report.lines())
    assert not any(check.unknown for check in report.checks)
    examined = {check.name: check.examined for check in report.checks}
    assert examined["weights"]["checkpoints"] == 2
    assert examined["tokens"]["steps"] == report.steps == (2 if kind == "synchronous" else 4)
    assert examined["credit"]["turns"] > 0


# ------------------------------------------------------------------------------- planted corruptions


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


def turn(session: Session) -> Any:
    return next(node for node in session.nodes if node.sampled)


def lines(run: Path, change: Callable[[dict[str, Any]], object], *, name: str = provenance.NAME) -> None:
    """Change the lines of a file in place; a list that `change` returns takes the line's place."""
    kept: list[dict[str, Any]] = []
    for line in (run / name).read_bytes().splitlines():
        row = orjson.loads(line)
        others = change(row)
        kept += others if isinstance(others, list) else [row]
    (run / name).write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in kept))


def swapped_token(run: Path) -> None:
    sql(run, f"UPDATE nodes SET token_ids = zeroblob(length(token_ids)) WHERE id = 1 AND session = {key(run)}")


def key(run: Path) -> int:
    with sqlite3.connect(run / "sessions.db") as db:
        return int(db.execute("SELECT key FROM sessions WHERE id = ?", (trained_session(run),)).fetchone()[0])


def swapped_token_with_its_checksum(run: Path) -> None:
    def change(session: Session) -> None:
        turn(session).token_ids[-1] ^= 1

    edit(run, change)


def swapped_token_of_a_prompt(run: Path) -> None:
    def change(session: Session) -> None:
        session.nodes[0].token_ids[0] ^= 1

    edit(run, change)


def edited_log_probability(run: Path) -> None:
    def change(session: Session) -> None:
        turn(session).logprobs[-1] -= 0.5

    edit(run, change)


def unknown_version(run: Path) -> None:
    def change(session: Session) -> None:
        turn(session).versions = [VersionSpan(77, s.start, s.end) for s in turn(session).versions]

    edit(run, change)


def later_version(run: Path) -> None:
    def change(session: Session) -> None:
        turn(session).versions = [VersionSpan(2, s.start, s.end) for s in turn(session).versions]

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
    file = next((run / "checkpoints").glob("step-000004/*.safetensors"))
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
    group_that_was_too_old: ("versions", "step 3, group .* more than 1 steps before"),
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
    group_trained_twice: ("groups", "has the attempts .*; they must be 0, 1, 2"),
    group_that_vanished: ("groups", "was begun before step-000004, and neither trained"),
    weights_that_never_arrived: ("weights", "version 2: the engines' weights are those of version 1"),
    one_engine_with_other_weights: ("weights", "version 2: engines have other weights than each other"),
    unrecorded_publication: ("weights", "step 2: version 2 was given to no engine"),
    stale_cache: ("weights", "version 2: engines kept caches of older weights, which weights.mode=abort drops"),
    failed_probe: ("weights", "version 2: the probe found 0.7"),
    engine_that_disagrees_with_the_trainer: ("metrics", "step 2: engine and trainer disagree"),
    edited_metrics: ("metrics", "step 2, reward/mean: logged 1.0"),
    missing_metrics: ("files", "metrics.jsonl: step 2 is there 0 times"),
    changed_checkpoint: ("files", "checkpoints/step-000004: model.safetensors has changed"),
}
"""Each corruption with the check that has to name it, and in which words."""


@pytest.fixture
def copied(runs: dict[str, Path], tmp_path: Path) -> Iterator[Path]:
    copy = tmp_path / "run"
    shutil.copytree(runs["resumed"], copy, copy_function=_link)
    yield copy
    shutil.rmtree(copy)


def _link(source: str, target: str) -> None:
    """Large files that no test changes in place are linked."""
    if source.endswith((".safetensors", ".pt")):
        Path(target).hardlink_to(source)
    else:
        shutil.copy2(source, target)


@pytest.mark.slow
@pytest.mark.parametrize("corruption", PLANTED, ids=lambda each: each.__name__)
def test_a_planted_corruption_is_found_and_named(corruption: Callable[[Path], None], copied: Path) -> None:
    session = trained_session(copied)
    check, words = PLANTED[corruption]
    corruption(copied)
    report = verify(copied)
    assert not report.passed
    found = [str(fault) for each in report.checks if each.name == check for fault in each.faults]
    pattern = words.format(session=session, group=session.rpartition("-")[0])
    assert any(re.search(pattern, fault) for fault in found), list(report.lines())


@pytest.mark.slow
def test_the_command_ends_with_0_1_or_2(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = CliRunner().invoke
    passed = run(app, ["verify", str(copied), "--weights", "--json"])
    assert passed.exit_code == 0
    assert orjson.loads(passed.stdout)["verdict"] == "PASS"
    edited_advantage(copied)
    failed = run(app, ["verify", str(copied)])
    assert failed.exit_code == 1
    monkeypatch.setattr("sys.argv", ["agentrl", "verify", str(tmp_path / "none")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    with pytest.raises(ConfigError, match="no run there"):
        verify(tmp_path / "none")


# ------------------------------------------------------------------------------------- refusing tokens

PROVEN = Published(0, 0, "local", "dropped", {"local": "9f"})


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (PROVEN, ""),
        (None, "version 0 generated tokens of it, and it was never published"),
        (Published(0, 0, "local", "kept", {"local": "9f"}), "caches that older weights computed were kept"),
        (Published(0, 0, "local", "dropped", {}), "no engine has a checksum"),
        (Published(0, 0, "local", "dropped", {"a": "9f", "b": "00"}), "the engines' checksums differ"),
    ],
)
def test_a_step_that_requires_provenance_refuses_tokens_without_it(known: Published | None, why: str) -> None:
    session = linear_session("s", [8, 9], [[30, 31]], reward=1.0)
    node = turn(session)
    node.policy = MAIN
    credit = Credit({("s", node.id): (NodeAdvantage(1.0, 1.0),)})
    evidence = Evidence({} if known is None else {(0, 0): known})
    groups = [Group("g", session.task, [session])]
    evidence.train(groups, credit, [], 0, require=False)
    if not why:
        return evidence.train(groups, credit, [], 0, require=True)
    with pytest.raises(Unproven, match=f"session s, turn {node.id} can't be trained on: .*{why}"):
        evidence.train(groups, credit, [], 0, require=True)


@pytest.mark.slow
def test_secrets_that_a_run_did_not_record_have_their_defaults_when_its_record_is_read(tmp_path: Path) -> None:
    settings = {"env": {"name": "calculator", "hf_token": HIDDEN}, "steps": 3}
    (tmp_path / "config.yaml").write_text("env: calculator\n")
    (tmp_path / "starts.jsonl").write_bytes(orjson.dumps({"step": 0, "settings": settings}) + b"\n")
    recorded = Recorded.read(tmp_path)
    assert recorded.secrets == {"env.hf_token"}
    assert recorded.settings(1).steps == 3
    assert recorded.settings(1).env.kwargs == {}
