"""Containers that die under an episode: it is played again, and its group is what it would have been."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from agentrl.config import RolloutConfig
from agentrl.envs.base import Env
from agentrl.envs.builtin.swe import repair, source
from agentrl.envs.builtin.swe.env import Swe
from agentrl.envs.results import TOOL_FAULTS
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.sessions.tree.conversation import Conversation
from agentrl.tools.sandbox.base import Sandbox
from agentrl.tools.sandbox.docker.backend import DockerSandbox
from agentrl.tools.sandbox.runner.loop import on_loop
from agentrl.types import Group, Message, Node, Status
from tests.envs.swe.conftest import FIXED, TASK

pytestmark = [pytest.mark.usefixtures("docker"), pytest.mark.slow]

GROUPS, N = 5, 4
LIMITS = RolloutConfig(concurrency=4, retries=3)


class Half:
    """Mends the program in every second session of a group, and half of it in the others."""

    async def act(self, conversation: Conversation, env: Env, turn: int, deadline: float) -> Node:
        """Look, write the program anew, hand in."""
        text = FIXED if conversation.session.sample % 2 else FIXED.replace("if number <= 0", "if False")
        steps: list[tuple[str, dict[str, Any]]] = [
            ("bash", {"command": "cat slug.py"}),
            ("edit", {"command": "create", "path": "slug.py", "text": text}),
            ("submit", {}),
        ]
        return conversation.demonstrate(env.call(steps[turn][0], **steps[turn][1]))


async def _kill(sandbox: Sandbox) -> None:
    """End a sandbox's real container, as an outage would."""
    assert isinstance(sandbox, DockerSandbox)
    await on_loop(sandbox.daemon.call(sandbox.daemon.api.kill, sandbox.id))


async def _play() -> list[Group]:
    rollouts = Rollouts(lambda: Swe(partial=True), Policy(NullRenderer()), LIMITS, 0)
    tasks = [TASK.as_task()] * GROUPS
    return await rollouts.collect(tasks, Half(), phase="train", n=N)


def _baselines(groups: list[Group]) -> list[tuple[str, list[float | None], float]]:
    """What credit is computed from: each group's scores, and their mean."""
    found = []
    for group in groups:
        scores = [session.score for session in group.scored]
        found.append((group.id, scores, sum(score or 0.0 for score in scores) / len(scores)))
    return found


def test_a_tenth_of_the_episodes_losing_their_container_leaves_every_baseline_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    undisturbed = asyncio.run(_play())
    seen: Counter[str] = Counter()
    honest = source.create_workspace

    async def deadly(sandbox: Sandbox, task: Any) -> None:
        await honest(sandbox, task)
        seen["laid out"] += 1
        if seen["laid out"] % 10 == 3:
            seen["killed"] += 1
            await _kill(sandbox)

    monkeypatch.setattr(source, "create_workspace", deadly)
    disturbed = asyncio.run(_play())
    assert seen["killed"] >= GROUPS * N // 10
    sessions = [session for group in disturbed for session in group.sessions]
    assert sum(session.counters.get("infra_retries", 0) for session in sessions) == seen["killed"]
    assert len(sessions) == GROUPS * N
    assert all(session.status is Status.COMPLETED for session in sessions)
    assert _baselines(disturbed) == _baselines(undisturbed)
    assert {round(score or 0.0, 3) for _, scores, _ in _baselines(disturbed) for score in scores} == {1.0, 0.667}


def test_who_loses_every_container_is_in_no_baseline_and_the_others_are_untouched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = Swe.reset

    async def doomed(self: Swe, task: Any, *, seed: int | None = None) -> list[Message]:
        said = await honest(self, task, seed=seed)
        if asyncio.current_task() in unlucky:
            await _kill(await self._get_sandbox())
        return said

    unlucky: set[Any] = set()
    play = Rollouts._play_recorded

    async def marked(self: Rollouts, session: Any, *more: Any) -> Any:
        if session.id.partition("~")[0].endswith("-0.0-1"):
            unlucky.add(asyncio.current_task())
        return await play(self, session, *more)

    monkeypatch.setattr(Swe, "reset", doomed)
    monkeypatch.setattr(Rollouts, "_play_recorded", marked)
    groups = asyncio.run(_play())
    lost = [session for group in groups for session in group.sessions if session.status is not Status.COMPLETED]
    assert [(session.group, session.sample) for session in lost] == [("train-0.0", 1)]
    assert lost[0].status is Status.AGENT_ERROR, "its tools failed in every attempt, and those of others did not"
    assert lost[0].counters[TOOL_FAULTS] == LIMITS.retries
    assert lost[0].score is None
    assert [len(group.scored) for group in groups] == [N - 1] + [N] * (GROUPS - 1)


def test_a_scoring_that_loses_its_container_is_done_again_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, calls = source.score, Counter[str]()

    async def deadly(exam: Any, key: Any, changes: Any, sandbox: Sandbox, **options: Any) -> Any:
        calls["scorings"] += 1
        if calls["scorings"] == 1:
            await _kill(sandbox)
        return await honest(exam, key, changes, sandbox, **options)

    monkeypatch.setattr(source, "score", deadly)
    groups = asyncio.run(_play())
    assert calls["scorings"] > GROUPS * N
    assert all(len(group.scored) == N for group in groups)


def test_a_run_in_which_containers_die_trains_on_its_full_number_of_groups(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    import agentrl

    honest, generate, seen = repair.SharedInterpreter._run, Rollouts.generate, Counter[str]()

    async def deadly(self: repair.SharedInterpreter, code: str) -> list[list[int]]:
        seen["runs"] += seen["training"]
        if seen["runs"] % 30 == 7 and self._sandbox is not None:
            seen["killed"] += 1
            await _kill(self._sandbox)
        return await honest(self, code)

    async def watched(self: Rollouts, *words: Any, **options: Any) -> None:
        seen["training"] = int(options["phase"] == "train")
        await generate(self, *words, **options)

    monkeypatch.setattr(repair, "TRIES", 1)  # so that episodes notice
    monkeypatch.setattr(repair.SharedInterpreter, "_run", deadly)
    monkeypatch.setattr(Rollouts, "generate", watched)
    result = agentrl.train(
        "swe",
        steps=3,
        run_dir=str(tmp_path / "run"),
        **{
            "warm_start.steps": 40,
            "warm_start.demos": 64,
            "warm_start.batch": 16,
            "rollout.groups_per_step": 4,
            "rollout.group_size": 4,
            "rollout.retries": 5,
            "eval.tasks": 4,
        },
    )
    assert seen["killed"] >= 1
    assert len(result.metrics) == 3
    for row in result.metrics:
        assert row["sessions/count"] == 16
        assert row["group/count"] == 4
        assert row["group/size"] == 4
        assert row["status/infra_error"] == 0
    assert sum(row.get("count/infra_retries", 0.0) for row in result.metrics) >= 1
