"""`agentrl verify`: what it can't tell, how the command ends, and steps that refuse tokens of unproven weights.

Kinds of runs and of changes are in `test_verify_kinds`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.config.secrets import HIDDEN
from agentrl.errors import ConfigError, Unproven
from agentrl.train.algorithms.credit import Credit, NodeAdvantage
from agentrl.train.record.provenance import Evidence, Published
from agentrl.train.record.verify import step_checks, verify
from agentrl.train.record.verify.recorded import Recorded
from agentrl.types import MAIN, Group
from tests.command_line import run_agentrl
from tests.train.trees import linear_session
from tests.train.verified.planted_steps import edited_advantage, sampled_turn


@pytest.mark.slow
def test_what_a_clean_run_can_not_tell_is_what_needs_the_weights_of_then(origin: Path) -> None:
    report = verify(origin / "run", weights=True)
    assert report.passed, list(report.lines())
    unknown = {(check.name, why, count) for check in report.checks for why, count in check.unknown.items()}
    assert unknown == {("metrics", step_checks.SEALED, 3)}
    examined = {check.name: check.examined for check in report.checks}
    assert examined["weights"]["checkpoints"] == 2
    assert examined["tokens"]["steps"] == report.steps == 3
    assert examined["credit"]["turns"] > 0


@pytest.mark.slow
def test_the_command_ends_with_0_1_or_2(origin: Path, tmp_path: Path) -> None:
    run, copied = CliRunner().invoke, tmp_path / "run"
    shutil.copytree(origin / "run", copied)
    passed = run(app, ["verify", str(copied), "--weights", "--json"])
    assert passed.exit_code == 0
    assert orjson.loads(passed.stdout)["verdict"] == "PASS"
    edited_advantage(copied)
    failed = run(app, ["verify", str(copied)])
    assert failed.exit_code == 1
    assert run_agentrl("verify", tmp_path / "none") == 2
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
    node = sampled_turn(session)
    node.policy = MAIN
    credit = Credit({("s", node.id): (NodeAdvantage(1.0, 1.0),)})
    evidence = Evidence({} if known is None else {(0, 0): known})
    groups = [Group("g", session.task, [session])]
    evidence.train(groups, credit, [], 0, require=False)
    if not why:
        return evidence.train(groups, credit, [], 0, require=True)
    with pytest.raises(Unproven, match=f"session s, turn {node.id} can't be trained on: .*{why}"):
        evidence.train(groups, credit, [], 0, require=True)


@pytest.mark.parametrize("line", ["[]", "3", "{}", '{"step": 0, "settings": null}'])
def test_a_record_of_starts_that_holds_something_else_is_damaged(line: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("env: calculator\n")
    (tmp_path / "starts.jsonl").write_text(f"{line}\n")
    with pytest.raises(ConfigError, match=r"starts\.jsonl is damaged"):
        Recorded.read(tmp_path)


@pytest.mark.slow
def test_secrets_that_a_run_did_not_record_have_their_defaults_when_its_record_is_read(tmp_path: Path) -> None:
    settings = {"env": {"name": "calculator", "hf_token": HIDDEN}, "steps": 3}
    (tmp_path / "config.yaml").write_text("env: calculator\n")
    (tmp_path / "starts.jsonl").write_bytes(orjson.dumps({"step": 0, "settings": settings}) + b"\n")
    recorded = Recorded.read(tmp_path)
    assert recorded.secrets == {"env.hf_token"}
    assert recorded.settings(1).steps == 3
    assert recorded.settings(1).env.kwargs == {}
