"""Stored sessions are scored anew as a result of their own: resumed, compared, and harmless."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.errors import AgentRLError, ConfigError, InfraError
from agentrl.overrides import validate
from agentrl.sessions.store.store import Store
from agentrl.train.display.console import Display
from agentrl.train.evaluation.rescore import rescoring
from agentrl.train.evaluation.rescore.changes import SessionScores, compare_scores
from agentrl.train.evaluation.rescore.rescoring import RescoreConfig, rescore
from agentrl.train.evaluation.suite.results import read_results
from agentrl.types import Session, Status, Task
from tests.envs.scoring.judge_server import part, serving
from tests.envs.scoring.test_judges import QUICK, collected

WORDS = ["one 1", "two", "three 33", "four 4444"]


async def recorded(folder: Path, tasks: int = 3) -> Path:
    """A run's folder with groups of four sessions; its settings name an environment that must not be imported."""
    folder.mkdir()  # noqa: ASYNC240
    (folder / "mine.py").write_text(f"open({str(folder / 'imported')!r}, 'w')\n")
    (folder / "config.yaml").write_text(f"env: {{name: '{folder / 'mine.py'}:Env'}}\nmodel: {{name: \"\\e[2Jm\"}}\n")
    with Store(folder / "sessions.db") as store:
        await collected([Task(id=f"t{n}", data={"n": n}) for n in range(tasks)], lambda n: WORDS[n % 4], 4, store)
    return folder


def digests(folder: Path) -> dict[str, str]:
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.iterdir())
        if file.is_file() and not file.name.endswith(("-wal", "-shm"))
    }


def settings(**rewards: Any) -> RescoreConfig:
    return validate({"rewards": rewards}, RescoreConfig)


async def test_every_session_has_the_new_rewards_alone_and_the_run_is_as_it_was(tmp_path: Path) -> None:
    run = await recorded(tmp_path / "run")
    before = digests(run)
    rewards = {
        "long": {"name": "length", "least": 9, "margin": 9, "weight": 0},
        "place": {"name": "rank", "of": "long"},
    }
    folder, result, changes = await rescore(run, settings(**rewards), Display())
    assert digests(run) == before
    assert not (run / "imported").exists()
    expected = {"one 1": 1 / 3, "two": 0.0, "three 33": 2 / 3, "four 4444": 1.0}
    with Store(folder / "sessions.db", read_only=True) as new, Store(run / "sessions.db", read_only=True) as old:
        for each in new.sessions():
            assert each.reward == pytest.approx(expected[each.answer])
            assert set(each.rewards) == {"long", "place"}
            assert [node.message for node in each.nodes] == [node.message for node in old.load(each.id).nodes]
    assert result.mean == pytest.approx(0.5)
    assert changes.sessions == 12
    assert changes.lost == 6
    paired = read_results(folder).parts.values()
    assert [len(task["scores"]) for each in paired for task in each["scores"]] == [4, 4, 4]


@pytest.mark.slow
async def test_it_goes_on_where_it_was_stopped_and_tries_again_what_a_service_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await recorded(tmp_path / "run", tasks=6)
    asked: list[str] = []
    down: list[bool] = [True]
    score_group = rescoring.score_group

    async def stopping(sessions: Sequence[Session], *more: Any) -> list[Session]:
        if sessions[0].group.startswith("train-2."):
            raise RuntimeError("stopped")
        return await score_group(sessions, *more)

    def says(question: str) -> str:
        asked.append(part("answer", question))
        return "nothing" if down[0] and "33" in asked[-1] else "Score: 5"

    with serving(says) as server:
        config = settings(
            judge={"name": "llm_judge", "url": server.url, **QUICK, "attempts": 1, "request_timeout": 60.0}
        )
        few = config.model_copy(update={"concurrency": 4})

        with monkeypatch.context() as patch:
            patch.setattr(rescoring, "score_group", stopping)
            with pytest.raises(RuntimeError, match="stopped"):
                await rescore(run, few, Display())
        assert not list(tmp_path.glob("rescore-*/result.json"))  # noqa: ASYNC240
        down[0] = False
        folder, result, _ = await rescore(run, few, Display())
        assert (result.sessions, result.infra_errors) == (24, 0)
        again = len(asked)
        same, _, _ = await rescore(run, few, Display())
        assert (same, len(asked)) == (folder, again)


@pytest.mark.slow
async def test_sessions_that_a_service_failed_have_no_score_and_where_it_failed_all_that_is_said(
    tmp_path: Path,
) -> None:
    run = await recorded(tmp_path / "run")
    with serving(lambda question: "Score: 5" if "two" in part("answer", question) else "?") as server:
        judge = {"name": "llm_judge", "url": server.url, **QUICK, "request_timeout": 60.0}
        folder, result, changes = await rescore(run, settings(judge=judge), Display())
        assert (result.sessions, result.infra_errors, changes.sessions) == (3, 9, 3)
        with Store(folder / "sessions.db", read_only=True) as store:
            assert {each.reward for each in store.sessions(status=Status.INFRA_ERROR)} == {None}
        with pytest.raises(InfraError, match="every session was lost"):
            await rescore(run, settings(judge={**judge, "rubric": "two", "scale": [0, 1]}), Display())


async def test_scores_of_other_rewards_are_never_taken_for_these_and_no_run_is_written_into(tmp_path: Path) -> None:
    """Into a folder with a result any rewards printed that result's scores, and into another run's went sessions."""
    run, other = await recorded(tmp_path / "run", 1), await recorded(tmp_path / "other", 1)
    anew = {"rewards": {"short": {"name": "length", "most": 4}}, "run_dir": str(tmp_path / "result")}
    _, first, _ = await rescore(run, validate(anew, RescoreConfig), Display())
    _, second, _ = await rescore(run, validate(anew, RescoreConfig), Display())
    assert first.mean == second.mean == 0.25
    before = {folder: digests(folder) for folder in (other, tmp_path / "result")}
    refused = [
        (run, {**anew, "rewards": {"short": {"name": "length", "most": 9}}}, "other rewards, or of other sessions"),
        (run, {**anew, "where": "score > 0"}, "other rewards, or of other sessions"),
        (other, anew, "other rewards, or of other sessions"),
        (run, {**anew, "run_dir": str(other)}, "holds a run"),
    ]
    for of, tree, why in refused:
        with pytest.raises(ConfigError, match=why):
            await rescore(of, validate(tree, RescoreConfig), Display())
    assert {folder: digests(folder) for folder in before} == before


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"rewards": {}}, "needs rewards"),
        ({"rewards": {"j": {"name": "llm_judge", "policy": "judge"}}}, "policies.judge.model=FOLDER"),
        ({"phase": "trian"}, r"has no sessions .*phases that it has: \w+"),
        ({"run_dir": "run"}, "is the run itself"),
    ],
)
async def test_what_can_not_be_meant_is_refused(more: dict[str, Any], why: str, tmp_path: Path) -> None:
    run = await recorded(Path("run"), tasks=1)
    before = digests(run)
    tree = {"rewards": {"short": {"name": "length", "most": 3}}, **more}
    with pytest.raises(AgentRLError, match=why):
        await rescore(run, validate(tree, RescoreConfig), Display())
    assert digests(run) == before
    assert [each.name for each in sorted(tmp_path.iterdir())] == ["run"]  # noqa: ASYNC240


async def test_forked_sessions_are_refused(tmp_path: Path) -> None:
    run = await recorded(tmp_path / "run", tasks=1)
    (run / "config.yaml").write_text("env: {name: x}\nrollout: {branch: {name: every}}\n")
    with pytest.raises(ConfigError, match="give phase=eval"):
        await rescore(run, settings(short={"name": "length", "most": 3}), Display())


def ranked(values: Sequence[float]) -> list[float]:
    return [sum(other < each for other in values) + sum(other == each for other in values) / 2 for each in values]


def test_ranks_and_flips_are_those_of_the_definitions() -> None:
    rng = random.Random(0)
    for _ in range(20):
        scores = [(rng.randint(0, 3) / 2, rng.randint(0, 3) / 2) for _ in range(9)]
        found = compare_scores([SessionScores(f"s{n}", "g", *pair) for n, pair in enumerate(scores)])
        before, after = (list(side) for side in zip(*scores, strict=True))
        assert found.rank_correlation == pytest.approx(np.corrcoef(ranked(before), ranked(after))[0, 1])
        signs = [np.sign(np.subtract.outer(side, side))[np.triu_indices(9, 1)] for side in (before, after)]
        assert found.within_groups == pytest.approx(np.corrcoef(*[np.r_[each, -each] for each in signs])[0, 1])
        assert found.flipped == int((signs[0] * signs[1] < 0).sum())
    flat = compare_scores([SessionScores("a", "g", 1.0, 0.0), SessionScores("b", "g", 1.0, 1.0)])
    assert (flat.rank_correlation, flat.within_groups, flat.pairs, flat.flipped) == (None, None, 1, 0)
    crossed = compare_scores([SessionScores("a", "g", 1.0, 0.0), SessionScores("b", "g", 0.0, 1.0)])
    assert (crossed.flipped, crossed.solved, crossed.lost) == (1, 1, 1)
    assert compare_scores([]).lines() == ["no session has a score in both"]


def test_no_words_at_all_are_answered_with_those_that_are_needed(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["rescore", str(tmp_path)])
    assert "rewards.NAME=KIND" in str(result.exception)


def test_help_lists_the_settings() -> None:
    printed = CliRunner().invoke(app, ["rescore", "rewards", "rewards.x=length", "--help"]).output
    assert "rewards.x.most" in printed
