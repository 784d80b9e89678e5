"""A recorded session is played again from one of its turns, under the weights that it had there."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentrl.attachments import support
from agentrl.cli import app
from agentrl.errors import ConfigError
from agentrl.sessions.store.store import Store
from agentrl.train.record.data_identity import STARTS
from agentrl.train.record.replay import ReplayConfig, Result, replay
from agentrl.train.record.run_folder import RunFolder
from agentrl.types import MAIN
from agentrl.types.session import branch_of
from agentrl.viewer import conversations
from agentrl.viewer.replayed import with_replays
from agentrl.viewer.runs import run_at
from tests.train.test_branched_run import WORLD as LETTERS
from tests.train.test_rerun import WORLD, train

SMALL: dict[str, Any] = {
    **{"rollout.groups_per_step": 2, "rollout.group_size": 4, "rollout.turn_tokens": 48, "eval.tasks": 1},
    **{"algo.lr": 1e-3, "checkpoint_every": 1, "keep_checkpoints": 2, "steps": 3},
    **{"rollout.top_k": 200, "rollout.min_p": 0.001},  # so that supports are recorded
}
ANSWER = 'content=os.environ.get("REPLAYED_ANSWER", "More.")'


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps; of the versions 0 to 2, that of step 1 has no checkpoint any more."""
    folder = tmp_path_factory.mktemp("replayed")
    (folder / "world.py").write_text("import os\n" + WORLD.replace('content="More."', ANSWER))
    train(env=f"{folder / 'world.py'}:Dense", **SMALL, run_dir=str(folder / "run"))
    with Store(folder / "run" / "sessions.db", read_only=True) as store:
        nodes = [node for session in store.sessions(phase="train") for node in session.nodes if node.sampled]
    assert all(support.NAME in node.attachments for node in nodes)
    assert [path.name for path in RunFolder(folder / "run").checkpoints()] == ["step-000002", "step-000003"]
    return folder / "run"


def turns(run: Path) -> list[tuple[str, int, int]]:
    """Every turn of training: session, number from 1, version."""
    with Store(run / "sessions.db", read_only=True) as store:
        return [
            (session.id, number, node.versions[0].version)
            for session in store.sessions(phase="train")
            for number, node in enumerate((node for node in session.nodes if node.policy == MAIN), 1)
        ]


def play(run: Path, session: str, turn: int, **settings: Any) -> Result:
    return asyncio.run(replay(run, session, ReplayConfig(turn=turn, **settings), trust=True))


@pytest.mark.slow
def test_random_turns_of_a_deterministic_run_are_reproduced_bit_for_bit_also_without_their_checkpoint(
    run: Path,
) -> None:
    every = turns(run)
    chosen = [next(each for each in every if each[2] == version) for version in (0, 1, 2)]
    later = [each for each in every if each[1] > 1]
    assert later, "no session has two turns"
    chosen += random.Random(7).sample(later, min(2, len(later))) + random.Random(8).sample(every, 1)
    for session, turn, version in chosen:
        result = play(run, session, turn)
        assert result.exact
        assert result.replays[0].reproduced, f"{session}, turn {turn} of version {version}"
        assert result.replays[0].whole, f"{session}, turn {turn} of version {version}"
        assert not result.replays[0].differences
        where = {0: "model's", 1: "trained again from model", 2: "step-000002's"}[version]
        assert where in result.weights


@pytest.mark.slow
def test_a_replay_by_another_kernel_says_so_and_promises_nothing(run: Path, tmp_path: Path) -> None:
    """On a machine of another build, or without a compiler, log-probabilities differ in their last bits."""
    other = tmp_path / "run"
    shutil.copytree(run, other)
    lines = [json.loads(line) for line in (other / STARTS).read_text().splitlines()]
    kernel = lines[0]["engine_kernel"]
    lines[0]["engine_kernel"] = "torch"
    (other / STARTS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    session, turn, _ = turns(other)[0]
    told: list[str] = []
    result = asyncio.run(replay(other, session, ReplayConfig(turn=turn), told.append, trust=True))
    assert not result.exact
    assert any(f"by the kernel torch, and engine=local has {kernel}" in line for line in told)


@pytest.mark.slow
def test_a_turn_of_a_branch_is_replayed_on_its_own_path_to_the_branchs_end_and_reward(tmp_path: Path) -> None:
    """Turns are numbered over the whole tree; the path of one has those before the fork, and the branch's."""
    (tmp_path / "world.py").write_text(LETTERS)
    forking = {"rollout.branch": "every", "rollout.branch.continuations": 1, "steps": 1, "rollout.turn_tokens": 8}
    forking |= {"rollout.groups_per_step": 1, "rollout.group_size": 2, "warm_start.steps": 20, "warm_start.demos": 16}
    forking["warm_start.batch"] = 8
    run = tmp_path / "run"
    train(env=f"{tmp_path / 'world.py'}:Letters", **{**SMALL, **forking}, run_dir=str(run))
    with Store(run / "sessions.db", read_only=True) as store:
        session = next(each for each in store.sessions(phase="train") if len(each.branches) > 2)
    played = [node for node in session.nodes if node.sampled]
    branches = [branch_of(session, node.id) for node in played]
    for branch in session.branches[:1] + session.branches[-1:]:
        own = branches.index(branch)  # its first turn
        replayed = play(run, session.id, own + 1).replays[0]
        assert replayed.reproduced
        assert replayed.whole, f"turn {own + 1}"
        assert replayed.session.reward == branch.reward
        assert [node.token_ids for node in replayed.session.nodes][-1] == session.nodes[branch.end - 1].token_ids
    seen = run_at(run)
    assert conversations.no_replay(seen, session) == ""
    with Store(run / "replays.db", read_only=True) as store:
        tree = with_replays(seen, session, store.ids()).tree
    assert tree.branches == session.branches, "what is equal bit for bit is one node"


@pytest.mark.slow
def test_weights_after_a_warm_start_are_trained_again_from_its_checkpoint(tmp_path: Path) -> None:
    settings = {**SMALL, "checkpoint_every": 9, "steps": 2, "warm_start.steps": 3}
    settings |= {"warm_start.demos": 16, "warm_start.batch": 4}
    train(env="calculator", **settings, run_dir=str(tmp_path / "run"))
    session, turn, _ = next(each for each in turns(tmp_path / "run") if each[2] == 4)
    result = play(tmp_path / "run", session, turn)
    assert result.weights == "version 4 was trained again from step-000000"
    assert result.replays[0].reproduced


@pytest.mark.slow
def test_other_seeds_give_other_sessions_with_a_value_and_are_stored_beside_the_run(run: Path) -> None:
    session, turn, _ = turns(run)[-1]
    result = play(run, session, turn, n=3)
    assert [each.seed for each in result.replays] == [None, 1, 2]
    assert [each.reproduced for each in result.replays] == [True, False, False]
    assert result.value is not None
    with Store(run / "replays.db", read_only=True) as store:
        stored = store.load(result.replays[1].session.id)
        assert [node.token_ids for node in stored.nodes] == [n.token_ids for n in result.replays[1].session.nodes]
    ended = CliRunner().invoke(app, ["replay", "--trust", f"{run}/{session}", f"turn={turn}", "seed=1"])
    assert ended.exit_code == 0, ended.output
    with Store(run / "replays.db", read_only=True) as store:
        assert store.load(stored.id).answer == stored.answer


@pytest.mark.slow
def test_an_environment_that_answers_otherwise_is_told_with_the_message(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, turn, _ = next(each for each in turns(run) if each[1] == 2)
    monkeypatch.setenv("REPLAYED_ANSWER", "Less!")
    replayed = play(run, session, turn).replays[0]
    assert len(replayed.differences) == 1
    assert f"session {session}, turn" in replayed.differences[0]
    assert "(user, hash" in replayed.differences[0]
    assert not replayed.whole


@pytest.mark.slow
def test_what_can_not_be_replayed_is_refused_by_name(run: Path, tmp_path: Path) -> None:
    session, _, _ = next(each for each in turns(run) if each[2] == 1)
    with pytest.raises(ConfigError, match=r"turn=9: session .* has . turns"):
        play(run, session, 9)
    with pytest.raises(ConfigError, match=r"'nobody' is not in .*sessions\.db"):
        play(run, "nobody", 1)
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "model")
    with pytest.raises(ConfigError, match="no intact checkpoint is of version 1"):
        play(copy, session, 1)
