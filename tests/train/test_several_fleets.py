"""Several policies whose engines are servers: each has a fleet of its own, which gets its policy's weights alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

import agentrl
from agentrl.config import RunConfig
from agentrl.errors import AgentRLError
from agentrl.overrides import spread
from agentrl.rollout.fleet import count_beside, divide_cores
from agentrl.train.driver.setup import complete
from agentrl.train.plan.dry_run import describe_run
from agentrl.train.record import provenance
from agentrl.train.record.provenance import Published
from agentrl.train.record.verify import verify
from agentrl.types import Session, Task
from agentrl.viewer.origins import Origins
from tests.rollout.engines import servers
from tests.rollout.fleet.token_server import interpreter
from tests.train.test_resume import kill_amid
from tests.train.test_several_learners import BOTH, DEMAND, alone, same, weights
from tests.train.trees import environment_node, sampled_node

SHORT: dict[str, Any] = {
    **{"steps": 2, "checkpoint_every": 2, "algo.warmup_steps": 0, "algo.minibatches": 1, "rollout.turn_tokens": 16},
}


def on_servers(**settings: Any) -> dict[str, Any]:
    """Settings by which both policies generate on servers of one kind."""
    return {f"{policy}engine.{name}": own for policy in ("", "policies.other.") for name, own in settings.items()}


def published(run: Path, policy: str) -> list[Published]:
    found = (each for _, each in provenance.read(run) if isinstance(each, Published))
    return [each for each in found if each.policy == policy]


def check(run: Path, steps: int, bound: float) -> None:
    """Each policy's versions were on its own servers alone, and computed what its trainer does."""
    report = verify(run)
    assert report.passed, report
    last = {policy: published(run, policy)[-1] for policy in ("main", "other")}
    for policy, newest in last.items():
        sent = published(run, policy)
        assert max(each.version for each in sent) == newest.version
        assert all(each.probe is not None and each.probe < bound for each in sent)
        assert {each.engine for each in sent} == {"sglang"}
        assert all(len(set(each.checksums.values())) == 1 for each in sent)
        assert not same(weights(run, policy, 0), weights(run, policy, steps)), f"{policy} learns"
        assert same(alone(run, policy, run.parent / policy), weights(run, policy, steps))
    assert not set(last["main"].checksums.values()) & set(last["other"].checksums.values())
    rows = [orjson.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    assert [row["step"] for row in rows] == [*range(1, steps + 1)]
    for prefix in ("", "other/"):
        assert max(row[f"{prefix}mismatch/abs_mean"] for row in rows) < bound
        assert {row[f"{prefix}staleness/max"] for row in rows} == {0.0}


@pytest.mark.slow
def test_each_policy_learns_on_servers_of_its_own_that_get_its_weights_alone(tmp_path: Path) -> None:
    """They speak SGLang's protocol, and compute as the local engine does."""
    python, run = interpreter(tmp_path / "python"), tmp_path / "run"
    agentrl.train(run_dir=str(run), **BOTH | SHORT | on_servers(name="sglang", python=str(python), device="cpu"))
    check(run, 2, 1e-4)


@pytest.mark.slow
def test_two_policies_learn_on_sglang_and_go_on_after_a_kill(tmp_path: Path) -> None:
    run, rows = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"
    own = servers.config("sglang", max_batch=16).model_dump(exclude_unset=True)
    longer = {"steps": 3, "checkpoint_every": 1, "keep_checkpoints": 9}
    begin = partial(agentrl.train, run_dir=str(run), **BOTH | SHORT | longer | on_servers(**own))
    kill_amid(begin, lambda: rows.exists() and rows.read_bytes().count(b"\n") >= 2)
    agentrl.train(resume=str(run))
    check(run, 3, 1e-3)


def test_the_servers_of_all_policies_share_the_cores(tmp_path: Path, allow_cores: Callable[[int], None]) -> None:
    allow_cores(12)
    three = {
        "engine": "vllm",
        "policies.other.engine": "vllm",
        "policies.other.fleet.engines": 2,
        "engine.device": "cpu",
    }
    config = game(three | {"policies.other.engine.device": "cpu"})
    shares = {
        name: divide_cores(*config.fleets[name], tmp_path, count_beside(name, config.fleets)) for name in config.fleets
    }
    assert {name: [each.threads for each in share] for name, share in shares.items()} == {"main": [3], "other": [3, 3]}
    attached = game(three | {"policies.other.fleet.urls": ["http://a:1"]})
    assert count_beside("main", attached.fleets) == 0
    assert config.of_policy("other").fleet.engines == 2


def game(settings: dict[str, Any]) -> RunConfig:
    both = {"env": DEMAND, "agents.right": "other", "policies.other.algo": "grpo", "algo.minibatches": 1}
    return complete(spread(both | settings))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"agents.rigth": "other", "policies.other.model": "start"}, "agents.rigth: .* did you mean 'right'"),
        ({"policies.other": "expert"}, "policies.other=expert: Demand has no expert"),
        ({"policies.other": "nothing.py:f"}, "policies.other='nothing.py:f'"),
        ({"policies.other.model.renderer": "qwen9"}, "unknown policies.other.model.renderer 'qwen9'"),
        ({"policies.other.model": "/nowhere"}, "policies.other.*/nowhere"),
        ({"engine": "sglang", "policies.other.engine": "sglang",
          "engine.url": "http://a:1", "policies.other.engine.url": "http://a:1"}, "the server of engine.url"),
    ],
)  # fmt: skip
def test_a_dry_run_refuses_players_that_a_run_would(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(AgentRLError, match=named):
        list(describe_run(complete(spread({"env": DEMAND, "agents.right": "other", "algo.minibatches": 1} | settings))))


def test_a_dry_run_says_which_servers_each_policy_has() -> None:
    lines = list(describe_run(game({"engine": "sglang", "engine.url": "http://a:1", "policies.other.engine": "vllm"})))
    assert [line.rpartition(", ")[2] for line in lines if " learns: " in line] == [
        "engine=sglang at http://a:1",
        "engine=vllm in one of its own",
    ]


def test_the_viewer_shows_the_weights_of_a_turns_own_policy(tmp_path: Path) -> None:
    """Both have a version 1."""
    sums = {"main": "one", "other": "two"}
    sent = [Published(1, 0, "sglang", "dropped", {"engine-0": own}, policy=policy) for policy, own in sums.items()]
    provenance.write(tmp_path, 1, sent)
    session = Session("s", Task(id="t"), group="g")
    for policy, own in sums.items():
        node = sampled_node(session, environment_node(session, None, [8]).id, [30, 31], version=1)
        node.policy = policy
        (weights,) = Origins(tmp_path / provenance.NAME).of(session, node)["weights"]
        assert weights["checksums"] == {"engine-0": own}
