"""Self-play against earlier versions: which ones are kept and met, and that a resumed run meets the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

import agentrl
from agentrl.config import PastConfig
from agentrl.envs.episode import NOOP
from agentrl.errors import ConfigError
from agentrl.overrides import parse_words
from agentrl.rollout.episodes.past import PastVersions
from agentrl.rollout.episodes.policies import Policy
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.sessions.store.store import Store
from agentrl.train.driver.api import configure
from agentrl.train.plan.preflight import check_evaluation
from agentrl.train.record import manifest
from agentrl.train.record.verify import verify
from agentrl.types import MAIN, Session, Task
from tests.rollout.self_play import self_play

GAME = f"{Path(__file__).parents[2] / 'examples' / 'plugins' / 'frozen_opponent.py'}:HigherDigit"


def exported(path: Path) -> None:
    path.mkdir(parents=True)


def pool(folder: Path, *, staleness: int = 0, **settings: Any) -> PastVersions:
    def load(name: str, model: Path) -> Policy:
        assert model.is_dir()
        return Policy(NullRenderer(), name=name, frozen=True)

    return PastVersions("old", PastConfig(**settings), folder, load, NOOP, seed=3, staleness=staleness)


def session(number: int, step: int, sample: int = 0, phase: str = "train") -> Session:
    return Session(f"s{number}-{sample}", Task(id="t"), group_number=number, step=step, sample=sample, phase=phase)


def met(versions: PastVersions, each: Session) -> str:
    found = versions.plays(each)
    return MAIN if found is None else found[0].name


async def trained(versions: PastVersions, steps: int, oldest: Callable[[int], int] = lambda step: 0) -> PastVersions:
    """The versions after a run of so many steps."""
    await versions.begin(0, exported)
    for step in range(1, steps + 1):
        if versions.due(step):
            await versions.keep(step, exported, oldest=oldest(step))
    return versions


async def test_groups_meet_the_first_version_and_the_newest_that_there_were_when_they_began(tmp_path: Path) -> None:
    versions = await trained(pool(tmp_path, every=2, size=2), 7)
    assert [versions.versions(step) for step in (0, 1, 2, 5, 7)] == [[0], [0], [0, 2], [0, 2, 4], [0, 4, 6]]
    names = {met(versions, session(number, 7)) for number in range(64)}
    assert names == {"old/0", "old/4", "old/6"}


async def test_all_sessions_of_a_group_meet_the_same_version_and_a_resumed_run_the_same_again(tmp_path: Path) -> None:
    versions = await trained(pool(tmp_path, every=2), 6)
    drawn = [met(versions, session(number, 6)) for number in range(32)]
    assert drawn == [met(versions, session(number, 6, sample=5)) for number in range(32)]
    again = pool(tmp_path, every=2)
    await again.begin(6, exported)
    assert drawn == [met(again, session(number, 6)) for number in range(32)]


async def test_evaluations_meet_the_first_version_and_demonstrations_none(tmp_path: Path) -> None:
    versions = await trained(pool(tmp_path, every=1), 3)
    assert {met(versions, session(number, 3, phase="eval")) for number in range(32)} == {"old/0"}
    assert met(versions, session(0, 0, phase="demo")) == MAIN


async def test_the_policy_itself_plays_in_the_part_of_the_groups_that_is_set(tmp_path: Path) -> None:
    versions = await trained(pool(tmp_path, every=1, current=0.5), 3)
    own = sum(met(versions, session(number, 3)) == MAIN for number in range(1000))
    assert 400 < own < 600


async def test_only_versions_that_groups_in_progress_may_meet_have_engines(tmp_path: Path) -> None:
    versions = await trained(pool(tmp_path, every=1, size=1), 5)
    assert [policy.name for policy in versions.policies] == ["old/0", "old/4", "old/5"]
    stale = await trained(pool(tmp_path / "stale", every=1, size=1, staleness=2), 5)
    assert [policy.name for policy in stale.policies] == ["old/0", "old/2", "old/3", "old/4", "old/5"]


async def test_weights_stay_as_long_as_a_run_that_goes_back_to_a_checkpoint_may_meet_them(tmp_path: Path) -> None:
    versions = await trained(pool(tmp_path, every=1, size=2), 6, oldest=lambda step: max(step - 2, 0))
    assert [step for step in range(7) if versions.path(step).exists()] == [0, 3, 4, 5, 6]
    again = pool(tmp_path, every=1, size=2)
    await again.begin(4, exported)
    assert again.versions(4) == versions.versions(4) == [0, 3, 4]
    assert not versions.path(5).exists()  # that step is taken again


async def test_a_version_that_is_missing_is_named_when_the_run_is_resumed(tmp_path: Path) -> None:
    versions = await trained(pool(tmp_path, every=2), 4)
    shutil.rmtree(versions.path(2))
    with pytest.raises(ConfigError, match=r"policies\.old=past: .*step-000002 is missing"):
        await pool(tmp_path, every=2).begin(4, exported)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["policies.old=past", "policies.b=past", "agents.first=b"], "policies.old and policies.b are both"),
        (["policies.old=past", "checkpoint_url=file:///x"], "which checkpoint_url= does not copy"),
        (["policies.old.past.every=3"], "policies.old: past.* is of no use to a policy that is 'model'"),
    ],
)
def test_settings_that_versions_can_not_be_kept_with_are_refused(words: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configure(GAME, parse_words(["model=tiny", "agents.second=old", *words]))
    assert told in str(caught.value)


@pytest.mark.slow
def test_an_evaluation_says_which_folder_has_a_version_to_play_against() -> None:
    config = configure(GAME, parse_words(["model=tiny", "agents.second=old", "policies.old=past"]))
    with pytest.raises(ConfigError, match=r"policies\.old\.model=RUN/past/step-… is one of the versions"):
        check_evaluation(config)


@pytest.mark.slow
def test_a_run_that_goes_on_from_a_checkpoint_has_the_same_games_metrics_and_weights(tmp_path: Path) -> None:
    settings = self_play(
        steps=4,
        checkpoint_every=2,
        keep_checkpoints=3,
        rollout={"groups_per_step": 4},
        eval={"tasks": 8},
        warm_start={"steps": 10},
    )
    whole = agentrl.train(**settings, run_dir=str(tmp_path / "whole")).path
    with Store(whole / "sessions.db") as store:
        sessions = [each for each in store.sessions() if each.phase == "train"]
    seekers = [(each.group, node.policy) for each in sessions for node in each.nodes if node.agent == "seeker"]
    played = {(group, policy) for group, policy in seekers if policy is not None}
    assert {MAIN, "earlier/0", "earlier/3"} <= {policy for _, policy in played}
    assert len(played) == len({group for group, _ in played}), "a group met two policies"
    assert not any(any(node.trainable) for each in sessions for node in each.nodes if node.policy not in (None, MAIN))

    cut = tmp_path / "cut"
    shutil.copytree(whole, cut)
    for later in (cut / "checkpoints" / "step-000004", cut / "past" / "step-000003"):
        shutil.rmtree(later)
    (cut / "stream.json").unlink()
    rows = (cut / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (cut / "metrics.jsonl").write_bytes(b"".join(rows[:3]))
    agentrl.train(resume=str(cut))
    assert (cut / "matches.jsonl").read_bytes() == (whole / "matches.jsonl").read_bytes()
    assert _settled(cut) == _settled(whole)
    for version in ("step-000003", "step-000004"):
        weights = f"past/{version}/model.safetensors"
        assert (cut / weights).read_bytes() == (whole / weights).read_bytes()
    report = verify(cut)
    assert report.passed, list(report.lines())
    assert {check.examined["versions"] for check in report.checks if check.name == "seals"} == {5}
    version = cut / "past" / "step-000003"
    shutil.copyfile(cut / "past" / "step-000000" / "model.safetensors", version / "model.safetensors")
    (version / manifest.NAME).unlink()
    manifest.write(version)
    assert any("past/step-000003/: is not what was written" in line for line in verify(cut).lines())


def _settled(run: Path) -> list[dict[str, float]]:
    """A run's metrics that do not depend on the clock."""
    rows = [orjson.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    wanted = ("reward/", "win_rate/", "elo/", "version", "step", "pack/tokens")
    return [{name: value for name, value in row.items() if name.startswith(wanted)} for row in rows]
