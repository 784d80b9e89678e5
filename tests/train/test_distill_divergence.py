"""A student learns whole distributions from a teacher, over forests as over rows; turns have teachers of their own."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.config import PolicyConfig, RunConfig
from agentrl.errors import ConfigError
from agentrl.overrides import merge_settings, validate
from agentrl.train.algorithms import algorithm_settings, make_algorithm
from agentrl.train.algorithms.advantages.distill import Distill, DistillConfig
from agentrl.train.algorithms.credit import Credit
from agentrl.train.algorithms.divergences import Divergence
from agentrl.train.forest.packing import pack_credited
from agentrl.train.trainers.teachers.scorers import ForestScorer
from agentrl.train.trainers.teachers.teachers import by_teacher
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Group
from tests.train.test_divergence import gkd
from tests.train.test_supports import narrowed
from tests.train.trees import as_group, linear_session, path, random_groups


@pytest.fixture(scope="module")
def student(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The teacher, a little changed."""
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    torch.manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp("student")
    model.save_pretrained(folder)
    return folder


def naive_gradients(
    student: Path, teacher: Path, groups: list[Group], credit: Credit, beta: float, top_k: int | None
) -> dict[str, torch.Tensor]:
    """Of the loss with each node's path as a row of its own, by transformers and TRL's formula over whole logits."""
    models = [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in (student, teacher)]
    loss = torch.zeros(())
    for session in (session for group in groups for session in group.scored):
        for node in session.nodes:
            if (session.id, node.id) not in credit.shares or node.sampling is None:
                continue
            (share,) = credit.shares[session.id, node.id]
            ids = [token for each in path(session, node.id) for token in each.token_ids]
            places = [len(ids) - len(node.token_ids) + i for i, used in enumerate(node.trainable) if used]
            before = torch.tensor(places) - 1
            mine, other = ((m(torch.tensor([ids])).logits[0] / node.sampling.temperature)[before] for m in models)
            mine, other = mine.log_softmax(-1), other.detach().log_softmax(-1)
            if top_k is not None:
                named = other.topk(top_k).indices
                rest = torch.ones_like(other, dtype=torch.bool).scatter(1, named, value=False)
                mine, other = (
                    torch.cat((e.gather(1, named), e.masked_fill(~rest, -torch.inf).logsumexp(1, keepdim=True)), 1)
                    for e in (mine, other)
                )
            loss = loss + share.weight * gkd(mine, other, beta).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    return {name: p.grad for name, p in models[0].named_parameters() if p.grad is not None}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "beta", "top_k"), [("forward", 0.0, 5), ("jsd", 0.3, None), ("reverse", 1.0, None)])
async def test_a_forests_gradient_is_that_of_rows_at_each_tokens_own_temperature(
    kind: str, beta: float, top_k: int | None, tiny_llama: Path, student: Path
) -> None:
    """Over the whole vocabulary, also of turns that were drawn from a part of it, where that is asked for."""
    config = DistillConfig.model_validate({"divergence": kind, "beta": 0.3, "top_k": top_k, "narrowed": "whole"})
    groups = random_groups(rng := random.Random(5), 3, depth=4, branching=2)
    for session in (session for group in groups for session in group.scored):
        narrowed(rng, session, {})
    with pytest.raises(ConfigError, match=r"algo\.narrowed=whole compares them"):
        await ForestScorer(tiny_llama, PolicyConfig(), Divergence(beta, top_k)).score(groups, 128, 0)
    algorithm = Distill(config)
    teacher = ForestScorer(tiny_llama, PolicyConfig(), algorithm.divergence)
    values = await teacher.score(groups, 128, 0)
    credit, forests = pack_credited(algorithm, groups, values, 96, 1)
    trainer = TorchTrainer(student, TorchConfig(device="cpu"), config)
    trainer.teacher = teacher.head if top_k is None else None
    for forest in forests:
        trainer.backward(trainer.prepare(forest))
    expected = naive_gradients(student, tiny_llama, groups, credit, beta, top_k)
    assert len(forests) > 1
    for name, parameter in trainer.model.named_parameters():
        if name in expected:
            torch.testing.assert_close(parameter.grad, expected[name], atol=2e-6, rtol=2e-4)


def test_the_whole_vocabulary_is_asked_for_as_the_page_has_it() -> None:
    """`algo.top_k=none` of docs/algorithms.md was no integer to the command line."""
    words = merge_settings(["algo=distill", "algo.divergence=jsd", "algo.top_k=none"])
    assert make_algorithm(algorithm_settings(words["algo"])).divergence == Divergence(0.5, None)


def test_turns_drawn_from_a_part_of_the_vocabulary_are_refused_before_a_run_unless_it_says_so() -> None:
    def check(*told: str) -> RunConfig:
        run = ["env=calculator", "policies.teacher.name=model", "algo=distill", "rollout.top_p=0.9"]
        return validate(merge_settings([*run, *told]), RunConfig)

    with pytest.raises(ConfigError, match=r"rollout.top_p=0.9 draws from a part of the .* set algo.narrowed=whole"):
        check("algo.divergence=reverse")
    assert check("algo.divergence=reverse", "algo.narrowed=whole").rollout.narrowed
    assert check().rollout.narrowed


def test_turns_of_their_own_go_to_their_teachers_and_the_others_stay() -> None:
    session = linear_session("s", [8, 9], [[10, 11], [12], [13, 14]], reward=0.0)
    algorithm = Distill(DistillConfig(turns={"2": "second", "3+": "late"}))
    found = by_teacher(algorithm, [as_group([session], "g")])
    sampled = [node.id for node in session.nodes if node.sampled]
    trained = {
        name: [node.id for node in group.sessions[0].nodes if any(node.trainable)] for name, (group,) in found.items()
    }
    assert trained == {"teacher": [sampled[0]], "second": [sampled[1]], "late": [sampled[2]]}
    assert all(any(session.nodes[node].trainable) for node in sampled)
    (same,) = by_teacher(Distill(DistillConfig()), [as_group([session], "g")])["teacher"]
    assert same.sessions[0] is session


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"divergence": "jsd", "loss": "clipped"}, "loss=clipped is for divergence=sampled"),
        ({"teacher": "main"}, "the policy itself .main. teaches nothing new"),
        ({"turns": {"first": "teacher"}}, "turns.first: a turn is a number from 1"),
        ({"privileged": "hint", "privileged_text": "psst"}, "needs a {}"),
    ],
)
def test_settings_that_say_nothing_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DistillConfig.model_validate(settings)
