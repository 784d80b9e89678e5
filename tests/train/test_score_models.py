"""Score models: losses and gradients on forests are those of transformers' models on rows, by TRL's formulas."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid, mse_loss
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from agentrl.config import DataConfig, TrainerConfig
from agentrl.errors import ConfigError, InvalidInput, InvalidWeights
from agentrl.models.scoring import ScoreHead, load_score_model, read_score_model
from agentrl.rollout.sources.judged import MARGIN, PAIR, mark_ends
from agentrl.rollout.sources.runs import read_run
from agentrl.sessions.store.store import Store
from agentrl.train.algorithms import algorithm_settings, make_algorithm
from agentrl.train.algorithms.objective import Meter, empty_sums
from agentrl.train.algorithms.scores import STEP_TARGET, TARGET
from agentrl.train.forest.forest import sequence_count, token_counts
from agentrl.train.forest.packing import pack_credited
from agentrl.train.trainers import check_trainer, make_trainer
from agentrl.train.trainers.fsdp.settings import FsdpConfig
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Group, Session
from agentrl.types.session import outcome
from tests.train.forked import random_segment, session_of
from tests.train.trees import VOCABULARY, as_group, environment_node, linear_session, sampled_node

KINDS: dict[str, dict[str, Any]] = {
    "pairs": {"name": "reward_model", "center_coef": 0.3},
    "score": {"name": "reward_model", "target": "score"},
    "label": {"name": "reward_model", "target": "label", "classes": ("a", "b", "c")},
    "steps": {"name": "prm"},
}
PAIRS_OF_A_PROMPT = 3
NETWORK = 5e-6
"""How far a weight's gradient may be from the row's: norms and softmax are in float32 whatever the model is in. What is
made of scores is TRL's to 1e-6 (`tests.train.trl`)."""


def ragged(rng: random.Random, name: str, prompt: list[int], steps: bool) -> Session:
    """A demonstrated conversation; of one with steps, each has its last token trained, and a label or none."""
    session = Session(name, as_group([]).task, group="g")
    parent = environment_node(session, None, prompt).id
    for _ in range(rng.randint(1, 3)):
        ids = [rng.randrange(8, VOCABULARY) for _ in range(rng.randint(1, 6))]
        node = sampled_node(session, parent, ids, demonstrated=True)
        parent = node.id
        if steps:
            node.trainable = [False] * (len(node.token_ids) - 1) + [True]
            node.reward = float(rng.randrange(2))
    if not steps:
        mark_ends(session)
    return session


def groups_of(kind: str, seed: int) -> list[Group]:
    """Groups that share prompts; in one of them a completion is a side of two pairs with different margins."""
    rng = random.Random(seed)
    found = []
    for number in range(2):
        prompt = [rng.randrange(8, VOCABULARY) for _ in range(rng.randint(3, 9))]
        made: list[Session] = []
        for place in range(PAIRS_OF_A_PROMPT * 2):
            session = ragged(rng, f"{number}-{place}", prompt, kind == "steps")
            if kind == "pairs":
                session.reward, session.info = 1.0 - place % 2, {PAIR: place // 2, MARGIN: 0.25 * (place // 2)}
            elif kind != "steps":
                session.reward = float(rng.randrange(3))
            made.append(session)
        if kind == "pairs":
            made[3].nodes = made[1].nodes
        found.append(as_group(made, f"g{number}"))
    return found


def on_rows(model: Any, kind: str, groups: list[Group]) -> Tensor:
    """The loss with each path as a row of its own, read as transformers reads it."""
    outputs, sessions = [], [session for group in groups for session in group.sessions]
    targets: list[float] = []
    for session in sessions:
        ids = torch.tensor([[token for node in session.nodes for token in node.token_ids]])
        logits = model(ids).logits
        if kind != "steps":
            outputs.append(logits)
            targets.append(session.reward or 0.0)
            continue
        place = 0
        for node in session.nodes:
            place += len(node.token_ids)
            if node.reward is not None:
                outputs.append(logits[:, place - 1])
                targets.append(node.reward)
    rows = torch.cat(outputs)
    if kind == "pairs":
        chosen, rejected = rows[0::2, 0], rows[1::2, 0]
        margin = torch.tensor([session.info[MARGIN] for session in sessions[::2]])
        return -logsigmoid(chosen - rejected - margin).mean() + 0.3 * torch.mean((chosen + rejected) ** 2)
    if kind == "score":
        return mse_loss(rows[:, 0], torch.tensor(targets))
    return cross_entropy(rows, torch.tensor(targets).long())


@pytest.mark.slow
@pytest.mark.parametrize("budget", [24, 10_000])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradient_on_forests_are_those_of_rows(
    kind: str, budget: int, tiny_llama: Path, tmp_path: Path
) -> None:
    """With TRL's formula (`RewardTrainer`, `PRMTrainer`), by every weight; margins and shared completions included."""
    trainer = TorchTrainer(tiny_llama, TorchConfig(device="cpu"), algorithm_settings(KINDS[kind]), seed=3)
    algorithm, groups = trainer.algorithm, groups_of(kind, 5)
    _, forests = pack_credited(algorithm, groups, None, budget, 0)
    assert (len(forests) > 1) == (budget == 24)
    batches = [trainer.prepare(forest) for forest in forests]
    if algorithm.sequence is not None:
        trainer.sums = empty_sums(algorithm, sequence_count(forests))
        trainer.sum_sequences(batches, trainer.sums)
    loss = trainer.accumulate(batches, Meter(), first=True)

    trainer.export(tmp_path / "model")
    auto = AutoModelForTokenClassification if kind == "steps" else AutoModelForSequenceClassification
    model = auto.from_pretrained(tmp_path / "model", attn_implementation="eager").eval()
    want = on_rows(model, kind, groups)
    want.backward()
    assert loss == pytest.approx(want.item(), rel=1e-6)
    ours = dict(trainer.model.named_parameters())
    for name, parameter in model.named_parameters():
        difference = (ours[name].grad - parameter.grad).abs().max()
        assert difference <= NETWORK * max(1.0, float(parameter.grad.abs().max())), name
    if budget > 24:
        rows = sum(len(node.token_ids) for group in groups for session in group.sessions for node in session.nodes)
        assert token_counts(forests)["tokens/packed"] < rows - 2 * (PAIRS_OF_A_PROMPT * 2 - 1) * 3 + 1


@pytest.mark.slow
def test_a_head_is_drawn_from_the_seed_and_kept_in_the_folder(tiny_llama: Path, tmp_path: Path) -> None:
    head = ScoreHead(("score",))
    one, same, other = (load_score_model(tiny_llama, head, torch.float32, "eager", seed) for seed in (1, 1, 2))
    assert torch.equal(one.score.weight, same.score.weight)
    assert not torch.equal(one.score.weight, other.score.weight)
    one.save_pretrained(tmp_path / "model")
    again = load_score_model(tmp_path / "model", head, torch.float32, "eager", 9)
    assert torch.equal(one.score.weight, again.score.weight)
    assert torch.equal(one.score.weight, read_score_model(tmp_path / "model", torch.float32).score.weight)
    steps = load_score_model(tmp_path / "model", ScoreHead(("score",), per_token=True), torch.float32, "eager", 9)
    assert torch.equal(one.score.weight, steps.score.weight), "the bias alone begins at 0"
    assert not steps.score.bias.any()
    with pytest.raises(InvalidWeights, match=r"score\.weight"):
        load_score_model(tmp_path / "model", ScoreHead(("a", "b")), torch.float32, "eager")
    with pytest.raises(InvalidWeights, match=r"missing: score\.weight"):
        read_score_model(tiny_llama, torch.float32)


def test_recorded_groups_are_compared_by_reward_at_the_ends_of_their_paths(tmp_path: Path) -> None:
    with Store(tmp_path / "sessions.db") as store:
        for number in range(30):
            for sample, reward in enumerate((0.0, 1.0, 0.5)):
                session = linear_session(f"{number}-{sample}", [8, 9 + number], [[10 + sample, 11]], reward=reward)
                session.group, session.sample, session.phase = f"g{number}", sample, "train"
                session.task.id = f"t{number}"
                store.save(session)
    data = read_run(DataConfig(name=str(tmp_path)), demonstrated=True, ends=True)
    task = data.tasks["train"][0]
    group = Group(task.id, task, data.sessions("train", task))
    trained = {(s.id, n.id): sum(n.trainable) for s in group.sessions for n in s.nodes if any(n.trainable)}
    assert set(trained.values()) == {1}
    for pairing, count in (("best_worst", 1), ("all", 3)):
        algorithm = make_algorithm(algorithm_settings({"name": "reward_model", "pairing": pairing}))
        credit = algorithm.credit([group])
        assert credit.pairs is not None
        assert len(credit.pairs) == count
        assert sum(pair.weight for pair in credit.pairs) == pytest.approx(1.0)
        assert (credit.pairs[0].chosen[0][-1], credit.pairs[0].rejected[0][-1]) in {("1", "0"), ("1", "2")}


def test_a_recorded_score_counts_step_rewards_and_is_that_of_the_path_where_sessions_fork() -> None:
    session = linear_session("s", [8], [[9], [10]], reward=1.0)
    session.nodes[1].reward, last = 0.25, session.nodes[-1]
    assert TARGET.fill(session, last) == session.score == 1.25
    assert STEP_TARGET.fill(session, session.nodes[1]) == 0.25
    made = (session_of("f", random_segment(random.Random(seed), 2, rewards=True), [8, 9, 10]) for seed in range(99))
    forked = next(session for session in made if session.branches)
    for path in forked.stored_paths():
        steps = sum(forked.original(node).reward or 0.0 for node in path)
        assert TARGET.fill(forked, path[-1]) == pytest.approx(outcome(forked, path[-1].id) + steps)


def without_scores(*_: Any, **__: Any) -> Any:
    """Somebody's trainer, which says nothing of score models."""


def test_settings_that_do_not_go_together_and_trainers_without_a_head_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="target=label takes the names"):
        algorithm_settings({"name": "reward_model", "target": "label"})
    with pytest.raises(ConfigError, match="trains no score models; those that do: fsdp, torch, megatron"):
        check_trainer(
            TrainerConfig(name=f"{__name__}:without_scores"), make_algorithm(algorithm_settings({"name": "prm"}))
        )
    algorithm = make_algorithm(algorithm_settings({"name": "reward_model"}))
    alone = linear_session("s", [8], [[9]], reward=1.0, demonstrated=True)
    alone.info = {PAIR: 0}
    with pytest.raises(InvalidInput, match="not one better and one worse side"):
        algorithm.credit([as_group([alone])])


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_ranks_of_fsdp_learn_scores_as_one_process_does(tiny_llama: Path, tmp_path: Path) -> None:
    """A pair's sides may lie in forests of different ranks."""
    algo, folder = algorithm_settings(KINDS["pairs"] | {"lr": 1e-3}), tmp_path / "model"
    theirs = TorchTrainer(tiny_llama, TorchConfig(device="cpu"), algo)
    ours = make_trainer(tiny_llama, FsdpConfig(ranks=2, timeout=350), algo)
    try:
        groups = groups_of("pairs", 1)
        _, forests = pack_credited(theirs.algorithm, groups, None, 24, 0)
        for _ in range(2):
            found, wanted = ours.step(forests), theirs.step(forests)
            assert found == {name: pytest.approx(value, rel=1e-4, abs=1e-6) for name, value in wanted.items()}
        for one, other in zip(ours.logprobs(forests), theirs.logprobs(forests), strict=True):
            assert torch.allclose(one, other, atol=1e-5)
        ours.export(folder)
    finally:
        ours.close()
    held = read_score_model(folder, torch.float32).state_dict()
    assert all(torch.allclose(held[name], tensor, atol=1e-5) for name, tensor in theirs.weights())
