"""Rewards in workers of their own: the same numbers and the same failures as where the session is played."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.cluster import current, open_cluster
from agentrl.config import RunConfig
from agentrl.envs.base import Env
from agentrl.envs.context import context_of
from agentrl.envs.results import give_rewards
from agentrl.errors import AgentRLError, ConfigError, DeadlineExceeded, EnvError, InfraError
from agentrl.models.tiny import TinyShape, build
from agentrl.overrides import merge_settings, validate
from agentrl.rollout.workers import reward_workers
from agentrl.rollout.workers.reward_workers import RewardWorkers, open_reward_workers, scored_in_worker
from agentrl.sessions.gateway.http import listener
from agentrl.sessions.store.store import Store
from agentrl.train.record import ledger
from agentrl.types import Message, Node, Session, Status, Task
from tests.cluster.conftest import add_node, remove_node
from tests.cluster.test_contract import SILENCE
from tests.cluster.test_elastic import soon
from tests.cluster.test_run import require_same, run
from tests.rollout import test_judging_policies

pytestmark = pytest.mark.slow

PLUGIN = str(Path(__file__).with_name("scores.py"))
FAILURES = ("nan", "inf", "range", "text", "down", "own", "name")
Score = Callable[[Session], Awaitable[Any]]
EVERYWHERE = pytest.mark.parametrize("caller", ["driver", "environment worker"])


def odd(kind: str, **more: Any) -> dict[str, Any]:
    return {"name": f"{PLUGIN}:Odd", "kind": kind, **more}


def session(number: int = 0) -> Session:
    message = Message(role="assistant", content="an answer")
    node = Node(0, None, message, list(range(number, number + 20)), [True] * 20, [-0.5] * 20)
    return Session(f"s{number}", Task(id="t"), seed=number, nodes=[node], info={"steps": [number]})


@asynccontextmanager
async def computing(
    added: dict[str, Any], caller: str = "driver", **settings: Any
) -> AsyncIterator[tuple[dict[str, Score], RewardWorkers]]:
    """What computes each reward by name: called by the run's process, or by one that calls its pool."""
    settings = {"rewards": 2} | settings
    config = RunConfig.model_validate({"env": "calculator", "cluster": settings, "rewards": added})
    with open_cluster(config.cluster, None):
        async with open_reward_workers(Env, config.rewards, config.cluster, config.sandbox) as (own, workers):
            assert workers is not None
            if caller == "driver":
                yield by_name(own), workers
                return
            async with workers.shared() as shared, scored_in_worker(Env, config.rewards, shared) as theirs:
                yield by_name(theirs), workers


def by_name(make_env: Callable[[], Env]) -> dict[str, Score]:
    return {mark.name: compute for mark, compute in context_of(make_env()).added_rewards}


async def here(rewards: dict[str, Any]) -> dict[str, Score]:
    """The same rewards in this process."""
    config = RunConfig.model_validate({"env": "calculator", "rewards": rewards})
    async with open_reward_workers(Env, config.rewards, config.cluster, config.sandbox) as (make_env, none):
        assert none is None
        return by_name(make_env)


async def outcome(score: Score, of: Session) -> Any:
    try:
        return await score(of)
    except AgentRLError as error:
        return error


@EVERYWHERE
async def test_values_failures_and_what_is_left_in_the_session_are_those_of_this_process(caller: str) -> None:
    rewards = {kind: odd(kind) for kind in FAILURES}
    rewards |= {"slow": odd("slow", timeout=0.05), "sine": {"name": f"{PLUGIN}:Sine"}}
    rewards["shares"] = {"name": f"{PLUGIN}:ByAgent", "weight": 0.25}
    theirs = await here(rewards)
    async with computing(rewards, caller) as (ours, workers):
        assert list(ours) == list(theirs) == sorted(rewards)
        assert [mark.weight for mark in workers.marks if mark.name == "shares"] == [0.25]
        for number, name in enumerate(rewards):
            one, two = session(number), session(number)
            expected, found = await outcome(theirs[name], one), await outcome(ours[name], two)
            if isinstance(expected, AgentRLError):
                assert (found.blame, str(found)) == (expected.blame, str(expected)), name
                assert type(found) is (InfraError if name == "own" else type(expected)), name
            else:
                assert found == expected, name
            assert two.counters == one.counters
            processes = [each.info.pop("scored_by", None) for each in (one, two)]
            assert processes[0] != processes[1] or name != "sine"
            assert two.info == one.info
        mistake = await outcome(ours["name"], session())
        assert "scores.py" in mistake.__notes__[0]


@EVERYWHERE
async def test_a_death_is_an_infrastructure_error_of_the_sessions_there_and_the_worker_is_replaced(
    caller: str, tmp_path: Path
) -> None:
    once = tmp_path / "once"
    async with computing({"odd": odd("die", file=str(once))}, caller) as (ours, workers):
        before = set(workers.pool.under_way)
        once.touch()
        env = Env()
        context_of(env).added_rewards = tuple((mark, ours[mark.name]) for mark in workers.marks)
        sessions = [session(number) for number in range(4)]
        await asyncio.gather(*(give_rewards(env, each) for each in sessions))
        lost = [each for each in sessions if each.status is Status.INFRA_ERROR]
        assert 1 <= len(lost) <= 2  # those of one worker of two
        assert all(each.reward is None and each.rewards == {} for each in lost)
        assert all("rewards.odd=" in (each.error or "") for each in lost)
        assert {each.reward for each in sessions if each not in lost} == {1.0}
        for _ in range(4):
            assert await ours["odd"](session()) == 1.0
        await settled(workers, 2)
        assert len(before & set(workers.pool.under_way)) == 1


async def settled(workers: RewardWorkers, count: int) -> None:
    await soon(lambda: len(workers.pool.under_way) == count, f"there are not {count} workers")


@EVERYWHERE
async def test_a_worker_that_a_reward_holds_past_its_deadline_is_ended_and_others_go_on(
    caller: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward_workers, "OVERTIME", 1.0)
    once = tmp_path / "once"
    rewards = {"odd": odd("stuck", file=str(once), timeout=1.0), "sine": {"name": f"{PLUGIN}:Sine"}}
    async with computing(rewards, caller, rewards=2) as (ours, workers):
        once.touch()
        held = asyncio.create_task(outcome(ours["odd"], session()))
        await soon(lambda: not once.exists(), "it is not computed")
        assert isinstance(await ours["sine"](session()), float)
        error = await held
        assert type(error) is DeadlineExceeded
        assert "took longer than 1 s (rewards.odd.timeout), and held its worker" in str(error)
        await settled(workers, 2)


async def test_a_worker_that_dies_while_nothing_is_computed_is_replaced_and_leaves_nothing() -> None:
    async with computing({"sine": {"name": f"{PLUGIN}:Sine"}}, rewards=1) as (ours, workers):
        assert isinstance(await ours["sine"](session()), float)
        (worker,) = workers.pool.under_way
        before = held()
        worker.kill()
        await soon(lambda: worker not in workers.pool.under_way, "its death is not noticed")
        assert isinstance(await ours["sine"](session()), float)  # waits for the other one
        await soon(
            lambda: all(now <= then for now, then in zip(held(), before, strict=True)), "something of it is left"
        )


def held() -> tuple[int, Counter[str], int]:
    """Open files, threads by what they are for, and the workers that the cluster knows."""
    threads = Counter(each.name for each in threading.enumerate() if not each.name.startswith("asyncio"))
    return len(os.listdir("/proc/self/fd")), threads, sum(not each.closed for each in current()._workers)  # type: ignore[attr-defined]


async def test_where_no_worker_is_left_the_run_ends_with_the_setting_and_the_last_death() -> None:
    async def run_until_cancelled() -> None:
        async with computing({"odd": odd("die")}, rewards=1, max_restarts=1) as (ours, _):
            for _ in range(3):
                assert type(await outcome(ours["odd"], session())) is InfraError
            await asyncio.Event().wait()

    with pytest.raises(InfraError, match=r"no worker of rewards is left \(cluster.max_restarts\); the last one: "):
        await run_until_cancelled()


async def test_calls_go_to_the_worker_that_has_fewest_whoever_asks() -> None:
    rewards = {"slow": odd("slow"), "sine": {"name": f"{PLUGIN}:Sine"}}
    settings = RunConfig.model_validate({"env": "calculator", "rewards": rewards}).rewards
    async with (
        computing(rewards, rewards=3) as (ours, workers),
        workers.shared() as shared,
        scored_in_worker(Env, settings, shared) as make_env,
    ):
        callers = (ours, by_name(make_env))
        waiting = [asyncio.ensure_future(who["slow"](session())) for who in callers]
        calls, scored_by = workers.pool.under_way, set()
        for who in (*callers, *callers):
            await soon(lambda: sorted(calls.values()) == [0, 1, 1], "calls are not where they should be")
            one = session()
            await who["sine"](one)
            scored_by.add(one.info["scored_by"])
        assert len(scored_by) == 1
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await soon(lambda: not any(calls.values()), "calls that were left still count")


async def test_a_reward_that_can_not_be_built_ends_the_start_with_its_name() -> None:
    with pytest.raises(ConfigError, match=r"rewards\.odd=.*OSError: no model"):
        async with computing({"odd": {"name": f"{PLUGIN}:Unbuilt"}}, rewards=1):
            pass


async def test_what_can_not_be_sent_back_is_the_authors_error_that_names_the_reward_and_the_key() -> None:
    async with computing({"odd": odd("unpicklable")}, rewards=1) as (ours, _):
        error = await outcome(ours["odd"], session())
        assert type(error) is EnvError
        assert str(error).startswith("rewards.odd: what it left in the session can't be sent back: info['result'] = ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("cluster.rewards=-1", "cluster.rewards=-1"),
        ("cluster.resources.engine.gpus=1", "unknown setting 'cluster.resources.engine.gpus'"),
    ],
)
def test_settings_that_mean_nothing_are_refused(words: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validate(merge_settings(["env=calculator", *words.split()]), RunConfig)
    assert says in str(refused.value)


def added(once: Path, how: str = "die") -> dict[str, Any]:
    """Two rewards, one of which ends or stops its process once, where the file is there."""
    return {"sine": {"name": f"{PLUGIN}:Sine", "weight": 0.5}, "odd": odd(how, file=str(once))}


@pytest.fixture(scope="module")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder and the result of a run that computes its rewards where its sessions are played."""
    folder = tmp_path_factory.mktemp("runs") / "local"
    return folder, run(folder, steps=1, rewards=added(folder.with_name("no")))


def drawn_again(folder: Path) -> int:
    with Store(folder / "sessions.db") as store:
        return sum(each.attempt for each in store.sessions())


@pytest.mark.timeout(600)
def test_a_run_with_reward_workers_learns_the_same_also_where_one_stops(
    in_process: tuple[Path, Any], tmp_path: Path
) -> None:
    once = tmp_path / "once"
    once.touch()
    cluster = {"rewards": 2, "silence_timeout": SILENCE}
    there = run(tmp_path / "run", steps=1, rewards=added(once, "stop"), cluster=cluster)
    require_same(tmp_path / "run", there, in_process)
    assert list(ledger.faults(tmp_path / "run")) == []
    assert drawn_again(tmp_path / "run") > 0
    logs = sorted(file.name for file in (tmp_path / "run" / "logs").iterdir())
    assert logs == ["rewards-0.log", "rewards-1.log", "rewards-2.log"]


@pytest.mark.timeout(900)
def test_environment_workers_on_ray_nodes_have_rewards_computed_on_the_nodes_that_the_settings_name(
    ray_nodes: Any, in_process: tuple[Path, Any], tmp_path: Path
) -> None:
    once = tmp_path / "once"
    once.touch()
    resources = {"environments": {"cpus": 0.5}, "rewards": {"cpus": 0.5, "custom": {"far": 1}}}
    cluster = {"name": "ray", "address": ray_nodes.address, "place_timeout": 60.0, "resources": resources}
    there = run(tmp_path / "ray", steps=1, rewards=added(once), cluster=cluster | {"environments": 1, "rewards": 2})
    require_same(tmp_path / "ray", there, in_process)
    assert drawn_again(tmp_path / "ray") > 0
    nodes = {file.read_text().partition(", process")[0] for file in (tmp_path / "ray" / "logs").glob("rewards-*.log")}
    assert len(nodes) == 1  # the one with `far`
    with Store(tmp_path / "ray" / "sessions.db") as store:
        scored_by = {each.id: each.info.get("scored_by") for each in store.sessions() if each.rewards}
    demonstrations = {id_ for id_ in scored_by if id_.startswith("demo")}
    assert demonstrations == {id_ for id_, process in scored_by.items() if process is None} != set()
    assert os.getpid() not in scored_by.values()


def test_rewards_on_ray_nodes_ask_the_policy_of_the_run_that_judges(
    ray_nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused: its engine listened where no other node reaches it."""
    hosts = list[str]()
    address = listener.address
    monkeypatch.setattr(listener, "address", lambda bound, host: hosts.append(host) or address(bound, host))  # type: ignore[func-returns-value]
    words = ["hello there, how are you? <|im_end|>"] * 50
    judge = build(tmp_path / "judge", words, shape=TinyShape(vocab=300, context=4096))
    resources = {"rewards": {"cpus": 0.5, "custom": {"far": 1}}}
    result = agentrl.evaluate(
        "calculator",
        run_dir=str(tmp_path / "run"),
        policy="expert",
        policies={"judge": {"model": str(judge), "engine": f"{test_judging_policies.__file__}:lenient"}},
        rewards={"clear": {"name": "llm_judge", "policy": "judge"}},
        cluster={"name": "ray", "address": ray_nodes.address, "rewards": 1, "resources": resources},
        **{"eval.tasks": 2},
    )
    assert result.metrics["reward/clear"] == pytest.approx(0.7)
    assert hosts == [ray_nodes.address.partition(":")[0]]


async def test_each_reward_worker_sees_a_gpu_of_its_own(ray_nodes: Any) -> None:
    node = add_node(ray_nodes, num_cpus=2, num_gpus=2)
    settings = {"name": "ray", "address": ray_nodes.address, "resources": {"rewards": {"gpus": 1}}}
    try:
        async with computing({"sine": {"name": f"{PLUGIN}:Sine"}}, **settings) as (ours, workers):
            assert len(set(workers.pool.nodes)) == 1
            sessions = [session() for _ in workers.pool.nodes]
            for each in sessions:
                await ours["sine"](each)
            assert {each.info["gpus"] for each in sessions} == {"0", "1"}
    finally:
        remove_node(ray_nodes, node)
