"""Several policies learn in one run: each as its own run would from the same sessions, and all resume as one."""

from __future__ import annotations

import asyncio
import re
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import copyfile
from typing import Any

import orjson
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

import agentrl
from agentrl.config import ClusterConfig, RunConfig
from agentrl.config.learners import named_as_given
from agentrl.config.secrets import public
from agentrl.errors import AgentRLError, ConfigError, EngineError
from agentrl.models import tiny
from agentrl.overrides import spread, validate
from agentrl.rollout.stream.batch_metrics import staleness
from agentrl.rollout.stream.outcomes import TRAINED, GroupOutcome
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree.perspective import group_seen_by, view_by
from agentrl.train.algorithms import make_algorithm
from agentrl.train.driver.launch import share_weights
from agentrl.train.driver.learning import Batch, Learning
from agentrl.train.driver.resuming import changes, rate_jumps
from agentrl.train.driver.setup import complete
from agentrl.train.plan.preflight import check_training
from agentrl.train.record import ledger
from agentrl.train.record.state import TRAINER, part
from agentrl.train.record.verify import verify
from agentrl.train.record.verify.recorded import Recorded
from agentrl.train.trainers import make_trainer
from agentrl.types import Group, Session, Status, Task
from tests.train.test_resume import copy_before, kill_amid
from tests.train.trees import environment_node, sampled_node

DEMAND = "examples/several_agents/demand.py:Demand"
SIX = "a folder with a model of six heads"
BOTH: dict[str, Any] = {
    **{"env": DEMAND, "agents.right": "other", "algo.lr": 1e-3, "warm_start.steps": 30, "warm_start.demos": 64},
    **{"policies.other.algo": "magrpo", "policies.other.algo.lr": 3e-3, "policies.other.algo.minibatches": 1},
    **{"rollout.groups_per_step": 3, "rollout.group_size": 4, "eval.tasks": 2, "eval.n": 1, "steps": 3, "seed": 5},
    **{"checkpoint_every": 3},
}


def weights(run: Path, policy: str, step: int) -> dict[str, torch.Tensor]:
    return load_file(part(run / "checkpoints" / f"step-{step:06d}", policy) / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_each_policy_learns_what_its_own_run_would_and_a_killed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    agentrl.train(run_dir=str(straight), **BOTH)
    assert verify(straight).passed
    for policy in ("main", "other"):
        first, last = weights(straight, policy, 0), weights(straight, policy, 3)
        assert not same(first, last), f"{policy} learns"
        assert same(alone(straight, policy, tmp_path / policy), last)
    assert same(weights(straight, "main", 0), weights(straight, "other", 0))
    copy_before(straight, 3, killed)
    agentrl.train(resume=str(killed))
    assert verify(killed).passed
    assert all(same(weights(straight, policy, 3), weights(killed, policy, 3)) for policy in ("main", "other"))


@pytest.mark.slow
def test_a_policy_stays_as_it_is_in_the_steps_in_which_another_learns(tmp_path: Path) -> None:
    """`main` learns in steps 1 and 3, `other` in 2 and 4."""
    short = {"steps": 4, "checkpoint_every": 1, "keep_checkpoints": 9, "warm_start.steps": 2, "warm_start.demos": 8}
    schedule = {"schedule.alternate": 1, "policies.other.algo": "grpo", "policies.other.algo.minibatches": 1}
    agentrl.train(run_dir=str(tmp_path), **BOTH | short | schedule, **{"algo.warmup_steps": 0})
    moved = {
        name: [not same(weights(tmp_path, name, step), weights(tmp_path, name, step + 1)) for step in range(4)]
        for name in ("main", "other")
    }
    rows = [orjson.loads(line) for line in (tmp_path / "metrics.jsonl").read_bytes().splitlines()]
    signal = [bool(row.get("grad_norm") or row.get("other/grad_norm")) for row in rows]
    assert moved == {"main": [signal[0], False, signal[2], False], "other": [False, signal[1], False, signal[3]]}
    assert any(signal)
    assert [("loss" in row, "other/loss" in row) for row in rows] == [(True, False), (False, True)] * 2
    assert [(row["version"], row["other/version"]) for row in rows] == [(3, 2), (3, 3), (4, 3), (4, 4)]
    report = verify(tmp_path, weights=True)
    assert report.passed, report
    loaded = next(check.examined for check in report.checks if check.name == "weights")
    assert (loaded["checkpoints"], loaded["checkpoints of other"]) == (5, 5)
    copyfile(
        *(part(tmp_path / "checkpoints/step-000004", policy) / "model.safetensors" for policy in ("main", "other"))
    )
    faults = [
        fault for check in verify(tmp_path, weights=True).checks if check.name == "weights" for fault in check.faults
    ]
    assert [fault.where for fault in faults] == ["step-000004/policies/other"]
    lines = (tmp_path / "provenance.jsonl").read_bytes().splitlines(keepends=True)
    trained = [number for number, line in enumerate(lines) if b'"trained"' in line]
    (tmp_path / "provenance.jsonl").write_bytes(b"".join(lines[: trained[1]] + lines[trained[1] + 1 :]))
    assert not verify(tmp_path).passed


@pytest.mark.slow
def test_groups_begin_before_both_policies_have_learned_and_a_killed_run_goes_on(tmp_path: Path) -> None:
    """Each policy's tokens are of versions that its own engine was given, at most two behind its own trainer."""
    early = {"rollout.staleness": 2, "steps": 5, "checkpoint_every": 2, "warm_start.steps": 2, "warm_start.demos": 8}
    rows = tmp_path / "metrics.jsonl"
    begin = partial(agentrl.train, run_dir=str(tmp_path), **BOTH | early)
    kill_amid(begin, lambda: rows.exists() and rows.read_bytes().count(b"\n") >= 3)
    agentrl.train(resume=str(tmp_path))
    report = verify(tmp_path)
    assert report.passed, report
    lines = [orjson.loads(line) for line in rows.read_bytes().splitlines()]
    assert len(lines) == 5
    entries = ledger.read(tmp_path)
    newest = {line["step"]: line["other/version"] for line in lines}
    assert all(newest[each.step] - 3 <= min(each.outcome.others["other"]) <= newest[each.step] for each in entries)
    for prefix in ("", "other/"):
        assert 0 < max(line[f"{prefix}staleness/max"] for line in lines) <= 2


@pytest.mark.slow
def test_each_learner_plays_against_its_own_earlier_versions(tmp_path: Path) -> None:
    """`other` is `right` in some groups, and in the others an earlier version of it is; both learn against `left`."""
    short = {"steps": 2, "checkpoint_every": 2, "warm_start.steps": 2, "warm_start.demos": 8, "algo.warmup_steps": 0}
    versions = {"agents.right": "earlier", "policies.earlier": "past", "policies.earlier.past.of": "other"}
    often = {"policies.earlier.past.current": 0.5, "policies.earlier.past.every": 1, "rollout.groups_per_step": 4}
    agentrl.train(run_dir=str(tmp_path), **BOTH | short | versions | often)
    with Store(tmp_path / "sessions.db", read_only=True) as store:
        sessions = [each for each in store.sessions() if each.phase == "train"]
    spoke = [{node.agent: node.policy for node in each.nodes if node.sampled} for each in sessions]
    assert {each["left"] for each in spoke} == {"main"}
    assert {"other", "earlier/0"} <= {each["right"] for each in spoke} <= {"other", "earlier/0", "earlier/1"}
    for session, by in zip(sessions, spoke, strict=True):
        seen = view_by(session, "other", {"right": "earlier"})
        trained = {node.agent for node in seen.nodes if any(node.trainable)}
        assert (set(seen.agent_rewards), trained) == (({"right"},) * 2 if by["right"] == "other" else (set(), set()))
        assert set(view_by(session, "main", {"right": "earlier"}).agent_rewards) == {"left"}
    kept = {step: load_file(tmp_path / "past" / "other" / f"step-00000{step}" / "model.safetensors") for step in (0, 2)}
    assert same(kept[0], weights(tmp_path, "other", 0))
    assert same(kept[2], weights(tmp_path, "other", 2))
    report = verify(tmp_path)
    assert report.passed, report


@pytest.mark.parametrize(
    ("schedule", "named"),
    [
        ({"frozen": {"third": [[1, 2]]}}, "schedule.frozen.third: only policies that learn"),
        ({"frozen": {"main": [[2, 1]]}}, r"schedule.frozen.main: \[2, 1\] ends before it begins"),
        ({"alternate": 2, "frozen": {"main": [[6, 6]]}}, "no policy learns in step 6"),
        ({"frozen": {"main": [[1, 100]], "other": [[7, 9]]}}, "no policy learns in step 7"),
        ({"frozen": {"main": [[1, 100]]}}, "main learns in none of the 100 steps"),
        ({"alternate": 100}, "other learns in none of the 100 steps"),
    ],
)
def test_a_schedule_that_leaves_a_step_without_a_learner_is_refused(schedule: dict[str, Any], named: str) -> None:
    both = {"env": {"name": DEMAND}, "agents": {"right": "other"}, "policies": {"other": {"trainer": "torch"}}}
    with pytest.raises(ValidationError, match=named):
        RunConfig.model_validate(both | {"schedule": schedule})


def test_a_schedule_is_of_no_use_to_a_single_learner_and_divides_the_steps_of_several() -> None:
    with pytest.raises(ValidationError, match="schedule says when each of several policies learns, and one does"):
        RunConfig.model_validate({"env": {"name": DEMAND}, "schedule": {"alternate": 2}})
    both = {"env": {"name": DEMAND}, "agents": {"right": "other"}, "policies": {"other": {"trainer": "torch"}}}
    config = RunConfig.model_validate(both | {"steps": 7, "schedule": {"alternate": 2}})
    assert [config.learns("main", step) for step in range(7)] == [True, True, False, False, True, True, False]
    assert (config.learning_steps("main"), config.learning_steps("other"), config.learning_steps("main", 3)) == (
        4,
        3,
        2,
    )


def alone(run: Path, policy: str, scratch: Path) -> dict[str, torch.Tensor]:
    """The weights of a policy whose own trainer is given the recorded sessions, step by step."""
    recorded = Recorded.read(run)
    whole = recorded.processes[-1].config
    config = whole if policy == "main" else whole.of_policy(policy)
    more = {"total_steps": config.steps, "seed": config.seed, "lora": config.lora}
    trainer = make_trainer(run / "model", config.trainer, config.algo, **more)
    trainer.load(part(run / "checkpoints" / "step-000000", policy) / TRAINER)
    learner = Learning.of(config.learning("main"), run, None, lambda _: nullcontext())
    algorithm = make_algorithm(config.algo)
    record = next(each for each in (recorded, *recorded.others) if each.policy == policy)
    with Store(run / "sessions.db", read_only=True) as store:
        for step in record.steps(store):
            asyncio.run(learner.learn(Batch(step.groups, step.number - 1, trainer, algorithm)))
    trainer.export(scratch)
    trainer.close()
    return load_file(scratch / "model.safetensors")


def test_a_policy_sees_the_others_turns_as_those_of_frozen_partners() -> None:
    session = Session("s", Task(id="t"), group="g", status=Status.COMPLETED, reward=0.5)
    session.agent_rewards, session.partner_rewards = {"a": 0.25, "b": 0.75}, {"c": 1.0}
    for agent, policy in (("a", "main"), ("b", "other"), ("c", "frozen")):
        environment_node(session, None, [8]).agent = agent
        node = sampled_node(session, len(session.nodes) - 1, [30, 31])
        node.agent, node.policy = agent, policy
        if policy == "frozen":
            node.trainable = [False] * len(node.trainable)
    before = orjson.dumps([node.trainable for node in session.nodes])
    players = {"b": "other", "c": "frozen"}
    for policy, agent, reward, names in (
        ("main", "a", 0.25, ["main", "other", "frozen"]),
        ("other", "b", 0.75, ["other", "main", "frozen"]),
    ):
        seen = view_by(session, policy, players)
        assert [node.policy for node in seen.nodes if node.sampled] == names
        assert [node.agent for node in seen.nodes if any(node.trainable)] == [agent]
        assert (seen.agent_rewards, seen.reward) == ({agent: reward}, reward)
        assert {**seen.agent_rewards, **seen.partner_rewards} == {"a": 0.25, "b": 0.75, "c": 1.0}
        assert [view.id for view in seen.by_agent()] == [f"s/{agent}"]
    assert orjson.dumps([node.trainable for node in session.nodes]) == before


def test_a_policy_is_stale_by_its_own_versions_alone() -> None:
    session = Session("s", Task(id="t"), group="g", status=Status.COMPLETED, reward=0.5)
    for policy, version in (("main", 7), ("other", 2), ("frozen", 0)):
        node = sampled_node(session, environment_node(session, None, [8]).id, [30, 31], version=version)
        node.policy = policy
        node.trainable = [policy != "frozen"] * len(node.trainable)
    group = Group("g", session.task, [session])
    outcome = GroupOutcome.of(group, TRAINED)
    assert (outcome.versions, outcome.others) == ((7,), {"other": (2,)})
    assert GroupOutcome.read(orjson.loads(orjson.dumps(outcome.data()))) == outcome
    assert "others" not in replace(outcome, others={}).data()
    for policy, version in (("main", 8), ("other", 3)):
        found = staleness([group_seen_by(group, policy, {})], version)
        assert found == {"staleness/mean": 1.0, "staleness/max": 1.0, "staleness/share_1": 1.0}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rollout": {"reuse": 0.5}}, "rollout.reuse"),
        ({"cluster": {"name": "ray", "environments": 2}}, "cluster.sessions"),
        ({"agent": "program.py:act", "cluster": {"gateways": 1}}, "cluster.gateways=1"),
        ({"policies": {"other": {"algo": {"name": "remax"}}}}, r"algo=remax \(other\)"),
        ({"eval": {"weights": "averaged"}, "trainer": {"name": "torch", "average_decay": 0.9}}, "averaged"),
    ],
)
def test_what_several_learners_lack_is_refused_by_name(settings: dict[str, Any], named: str) -> None:
    both = {"env": {"name": DEMAND}, "agents": {"right": "other"}, "policies": {"other": {"trainer": "torch"}}}
    with pytest.raises(ValidationError, match=rf"policies.other learns beside main: .*{named}"):
        RunConfig.model_validate(both | settings)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"policies.other.trainer": "megatron", "policies.other.trainer.tensor_parallel": 3},
         "policies.other.trainer.tensor_parallel=3 does not divide the model's 4 attention heads"),
        ({"trainer": "megatron", "trainer.tensor_parallel": 3, "policies.other.trainer": "torch"},
         "trainer.tensor_parallel=3 does not divide the model's 4 attention heads"),
        ({"trainer": "megatron", "trainer.tensor_parallel": 4,
          "policies.other.model": SIX, "policies.other.algo": "grpo"},
         "policies.other: trainer.tensor_parallel=4 does not divide the model's 6 attention heads"),
        ({"policies.other.trainer": "fsdp", "policies.other.algo": "ppo", "policies.other.algo.value_trunk": "own"},
         "policies.other.algo.value_trunk=own: policies.other.trainer=fsdp has one model"),
        ({"engine": "sglang", "engine.url": "http://x:1", "policies.other.algo": "grpo",
          "policies.other.engine": "vllm", "policies.other.fleet.urls": ["http://x:2", "http://x:1/"]},
         "policies.other.fleet.urls=http://x:1/: the server of engine.url has the weights of one policy"),
        ({"policies.other.engine": "sglang", "policies.other.fleet.colocated": True},
         "policies.other: fleet.colocated=true is for a run's main policy"),
        ({"policies.other": "noop", "policies.other.fleet.engines": 2},
         "policies.other: fleet.* is of no use to a policy that is 'noop'"),
        ({"policies.other.engine": "sglang", "policies.other.engine.python": "/nowhere", "policies.other.algo": "grpo"},
         "policies.other.engine.python='/nowhere' is no interpreter"),
        ({"policies.other.engine": "sglang", "policies.other.fleet.urls": ["x"], "policies.other.algo": "grpo"},
         "policies.other.fleet.urls[0]='x'"),
        ({"policies.other.model": "tiny"}, "policies.other.model='tiny' has no folder"),
        ({"policies.other.model": "/nowhere"}, "policies.other.model: unknown model '/nowhere'"),
        ({"policies.other.model.renderer": "qwen9"}, "unknown policies.other.model.renderer 'qwen9'"),
        ({"policies.other.trainer": "torc"}, "policies.other.trainer: unknown trainer 'torc'; did you mean 'torch'"),
        ({"policies.other.algo": "grp"}, "policies.other.algo: unknown algorithm 'grp'"),
        ({"policies.other.algo.loss": "clip"}, "policies.other.algo.loss: unknown policy loss 'clip'"),
        ({"policies.other.engine": "sgl"}, "policies.other.engine: unknown engine 'sgl'"),
        ({"policies.other.algo": "grpo", "policies.other.weights.transport": "dsk"},
         "policies.other.weights.transport: unknown weight transport 'dsk'"),
        ({"policies.other.trainer": "/nowhere.py:T"}, "policies.other.trainer='/nowhere.py:T'"),
        ({"policies.othr.trainer": "torch"}, "no such policy; did you mean 'othr'?"),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_what_a_policy_can_not_have_is_refused_by_its_setting_before_anything_starts(
    words: dict[str, Any], named: str, tmp_path: Path
) -> None:
    if SIX in words.values():
        tiny.build(tmp_path, ["numbers and words"] * 9, shape=tiny.TinyShape(vocab=400, layers=1, width=96, heads=6))
    game = {"env": DEMAND, "agents.right": "other", "algo.minibatches": 1, "warm_start.steps": 0}
    words = {name: str(tmp_path) if value == SIX else value for name, value in words.items()}
    with pytest.raises(AgentRLError) as refused:
        check_training(complete(spread(game | words)))
    assert named in str(refused.value)


def test_a_policys_own_numbers_may_change_where_a_run_is_resumed_as_the_main_ones_may(tmp_path: Path) -> None:
    game = {"env": DEMAND, "agents.right": "other", "policies.other.algo.schedule": "linear"}
    saved = complete(spread(game))
    may = {"policies.other.algo.lr": 0.5, "policies.other.engine.max_batch": 7, "algo.lr": 0.25}
    assert changes(tmp_path, public(saved), public(complete(spread(game | may)))) == [
        "algo.lr=0.001 -> 0.25",
        "policies.other.engine.max_batch=64 -> 7",
        "policies.other.algo.lr=1e-06 -> 0.5",
    ]
    longer = complete(spread(game | {"steps": 400}))
    assert [line.partition(" jumps")[0] for line in rate_jumps(saved, longer, 30)] == [
        "the learning rate", "other: the learning rate"
    ]  # fmt: skip
    for name, value in {"algo": "rloo", "trainer": "torch", "temperature": 0.5, "model": "elsewhere"}.items():
        other = game | {f"policies.other.{name}{'.name' * (name == 'algo')}": value}
        with pytest.raises(ConfigError, match=rf"policies.other.{name}={value} .*a run keeps its"):
            changes(tmp_path, public(saved), public(complete(spread(other))))


@pytest.mark.parametrize(
    ("policies", "named"),
    [
        ({"a": {"name": "past", "past": {"of": "third"}}}, r"policies.a.past.of=third: .*: main, other"),
        ({"a": {"name": "past", "past": {"of": "other"}}}, r"policies.other plays no agent"),
    ],
)
def test_versions_are_those_of_a_policy_that_learns_and_plays(policies: dict[str, Any], named: str) -> None:
    both = {"env": {"name": DEMAND}, "agents": {"right": "a"}, "policies": {"other": {"trainer": "torch"}, **policies}}
    with pytest.raises(ValidationError, match=named):
        RunConfig.model_validate(both)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("../../other", "not '../../other'"),
        ("gpt-4.1", "a policy has 1 to 64 letters, digits, '_' and '-' as its name, not 'gpt-4.1'"),
        ("", "not ''"),
        ("critic", "policies.critic learns, and metrics critic/… are the run's own"),
        ("main", "policies.main is the policy that is trained"),
    ],
)
def test_a_policys_name_is_that_of_a_folder_of_settings_and_of_metrics(name: str, named: str) -> None:
    run = {"env": {"name": DEMAND}, "agents": {"right": name}, "policies": {name: {"trainer": "torch"}}}
    with pytest.raises(ValidationError, match=re.escape(named)):
        RunConfig.model_validate(run)


def test_a_misspelt_setting_of_a_policys_algorithm_is_told_with_those_that_there_are() -> None:
    with pytest.raises(
        ConfigError, match=r"policies.b.algo.gama.* did you mean 'policies.b.algo.gamma'\? Known in pol"
    ):
        validate(spread({"env": DEMAND, "policies.b.algo.name": "ppo", "policies.b.algo.gama": 1}), RunConfig)


def test_a_policy_without_weights_can_not_learn() -> None:
    with pytest.raises(ValidationError, match="a policy that is 'expert' has no weights to train"):
        RunConfig.model_validate({"env": {"name": DEMAND}, "policies": {"other": {"name": "expert", "algo": "grpo"}}})


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("an engine: engine.max_context is 9", "an engine: policies.b.engine.max_context is 9"),
        ("trainer.ranks=3, use trainer=torch", "policies.b.trainer.ranks=3, use policies.b.trainer=torch"),
        ("algo.lr=0 and rollout.algo=1", "policies.b: algo.lr=0 and rollout.algo=1"),
    ],
)
def test_what_is_wrong_with_a_policy_is_told_by_its_own_settings_where_it_has_them(said: str, named: str) -> None:
    """`algo` is the main policy's here."""
    config = complete(spread({"env": DEMAND, "agents.right": "b", "policies.b.trainer": "fsdp", "algo.minibatches": 1}))
    with pytest.raises(EngineError, match=f"^{re.escape(named)}$"), named_as_given(config.policies, "b"):
        raise EngineError(said)
    with pytest.raises(EngineError, match=f"^{re.escape(said)}$"), named_as_given(config.policies, "main"):
        raise EngineError(said)


def test_every_policys_weights_go_through_the_runs_folder_where_engines_are_on_other_nodes(tmp_path: Path) -> None:
    """A policy with a way of its own had a folder of the driver's machine, which other nodes don't see."""
    own = {"policies.b.trainer": "torch", "policies.b.weights.verify": False, "algo.minibatches": 1}
    config = complete(spread({"env": DEMAND, "agents.right": "b", "cluster.name": "ray"} | own))
    main, other = config.learners["main"], config.policies["b"]
    shared = share_weights(other, config.cluster, tmp_path)
    ways = share_weights(main, config.cluster, tmp_path).weights, shared.weights
    assert [way.dir for way in ways] == [str(tmp_path / "weights")] * 2  # type: ignore[union-attr]
    assert not shared.weights.verify  # type: ignore[union-attr]
    assert share_weights(other, ClusterConfig(), tmp_path).weights == other.weights
