"""A student learns from what a teacher would have said of its own samples."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import fmean

import pytest
import torch
from transformers import AutoModelForCausalLM

import agentrl
from agentrl.config import EngineConfig, PolicyConfig, RunConfig
from agentrl.errors import ConfigError
from agentrl.overrides import spread, validate
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.train.algorithms import make_algorithm
from agentrl.train.algorithms.advantages.distill import DistillConfig
from agentrl.train.algorithms.credit import trainable_nodes
from agentrl.train.trainers.teachers.scorers import EngineScorer, ForestScorer
from agentrl.types import Session
from benchmarks.distillation import distil
from tests.train.trees import as_group, linear_session, path, random_groups


@pytest.mark.parametrize(("discount", "expected"), [(0.0, [0.5, -1.0]), (0.5, [0.0, -1.0])])
def test_the_advantage_is_the_log_ratio_of_teacher_to_student_and_of_later_tokens_by_the_discount(
    discount: float, expected: list[float]
) -> None:
    session = linear_session("s", [8, 9], [[10, 11]], reward=0.0)
    node = next(node for node in session.nodes if node.sampled)
    node.logprobs[-2:] = [-1.0, -2.0]
    teacher = {(session.id, node.id): [*[0.0] * (len(node.token_ids) - 2), -0.5, -3.0]}
    algorithm = make_algorithm(DistillConfig(discount=discount))
    credit = algorithm.credit([as_group([session], "g")], teacher)
    (share,) = credit.shares[session.id, node.id]
    assert isinstance(share.advantage, list)
    assert share.advantage[-2:] == pytest.approx(expected)
    assert credit.metrics["distill/reverse_kl"] == pytest.approx(0.25)


@pytest.mark.slow
async def test_forests_and_an_engine_give_what_transformers_gives_for_each_path(tiny_llama: Path) -> None:
    """On trees with branches, at temperatures of their own; a forest computes each shared prefix once."""
    groups = random_groups(random.Random(3), 4, depth=5, branching=3)
    by_forest = await ForestScorer(tiny_llama, PolicyConfig()).score(groups, 512, 0)
    engine = LocalEngine(tiny_llama, EngineConfig(device="cpu"))
    try:
        by_engine = await EngineScorer(engine).score(groups, 512, 0)
    finally:
        await engine.close()
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    checked = 0
    for session in (session for group in groups for session in group.scored):
        for node in trainable_nodes(session):
            expected = _scores(model, session, node.id)
            for found in (by_forest, by_engine):
                assert found[session.id, node.id] == pytest.approx(expected, abs=2e-5)
            checked += len(expected)
    assert checked > 100
    assert by_forest.keys() == by_engine.keys()


@torch.no_grad()
def _scores(model: torch.nn.Module, session: Session, node_id: int) -> list[float]:
    """A node's log-probabilities in a row of its own, 0 where nothing is trained."""
    node = session.nodes[node_id]
    ids = [token for each in path(session, node_id) for token in each.token_ids]
    assert node.sampling
    logp = (model(torch.tensor([ids])).logits[0] / node.sampling.temperature).log_softmax(-1)
    first = len(ids) - len(node.token_ids)
    places = range(first, len(ids))
    return [logp[i - 1, ids[i]].item() if used and i else 0.0 for i, used in zip(places, node.trainable, strict=True)]


@pytest.mark.slow
def test_a_students_divergence_from_its_teacher_falls(
    learned: Path, taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The teacher is what the student becomes by reinforcement; no reward is learned from."""
    teacher = sorted((learned / "checkpoints").iterdir())[-1]
    found = distil(taught, teacher, tmp_path, steps=6, tasks=8)
    assert "reverse KL " in capsys.readouterr().out
    assert found[0] > 0.05
    assert fmean(found[-3:]) < found[0] / 2


@pytest.mark.slow
@pytest.mark.parametrize("row", ["jsd", "top_k", "privileged"])
def test_each_kind_of_divergence_falls_in_a_run(row: str, learned: Path, taught: Path, tmp_path: Path) -> None:
    """Over the vocabulary, over the top k, and from the policy itself with the answer in its prompt."""
    teacher = sorted((learned / "checkpoints").iterdir())[-1]
    found = distil(taught, teacher, tmp_path, row=row, steps=3, tasks=2, groups=12)
    assert found[0] > 1e-3
    assert found[-1] < found[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "asks policies.teacher for log-probabilities, and it is not there: set policies.teacher.model=FOLDER"),
        ({"policies.teacher": "expert"}, "asks policies.teacher for log-probabilities, and it is 'expert'"),
        ({"algo.teacher": "one", "policies.two.model": "x"}, "policies.one for log-probabilities, and it is not there"),
        ({"algo.teachers.a": "b", "policies.teacher.model": "x"}, "policies.b for log-probabilities"),
        ({"policies.teacher.model": "x", "policies.other.model": "y"}, "policies.other plays no agent"),
        (
            {"policies.teacher.model": "x", "cluster.name": "ray", "cluster.environments": 1},
            "another process holds the sessions: set cluster.sessions=false",
        ),
    ],
)
def test_a_teacher_that_is_missing_or_has_no_weights_is_refused_by_name(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(spread({"env.name": "calculator", "algo.name": "distill", **settings}), RunConfig)


def test_where_tasks_name_their_teachers_any_policy_with_weights_that_plays_nobody_may_be_one() -> None:
    """A rival without weights, which plays an agent, was asked for log-probabilities."""
    settings = {"algo.teacher_field": "domain", "policies.rival": "expert", "agents.player_1": "rival"}
    models = {"policies.teacher.model": "x", "policies.maths.model": "y"}
    config = validate(spread({"env.name": "calculator", "algo.name": "distill", **settings, **models}), RunConfig)
    assert config.asked_policies == {"teacher", "maths"}


@pytest.mark.slow  # whose fixture is the suite's learning run
def test_a_teacher_with_another_tokenizer_is_refused_by_name(taught: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policies.teacher.model=.*smollm.*tokenizer .*49152 tokens"):
        agentrl.train(
            "calculator",
            model=str(taught),
            algo="distill",
            steps=1,
            run_dir=str(tmp_path / "run"),
            **{"policies.teacher.model": "smollm2-135m"},
        )
    assert not (tmp_path / "run").exists()
