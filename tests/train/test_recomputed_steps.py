"""Whole steps of training, recomputed in float64 by rows: advantages, losses, corrections, schedules, every update.

Cases are a covering design over what decides a step (`tests.suite.pairs`): two values of any two factors meet in one.
Algorithms, denominators and token budgets take turns over the cases.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from agentrl.config import AlgoConfig
from agentrl.train.algorithms import Algorithm, Needs, algorithm_settings, make_algorithm
from agentrl.train.algorithms.credit import Credit, Values
from agentrl.train.algorithms.values import compute_values, per_token
from agentrl.train.driver.minibatches import updates_of
from agentrl.train.forest.packing import pack_credited
from agentrl.train.trainers import Trainer, make_trainer
from agentrl.train.trainers.fsdp.settings import FsdpConfig
from agentrl.train.trainers.fsdp.trainer import FsdpTrainer
from agentrl.train.trainers.megatron.settings import MegatronConfig
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import GREEDY, Group, Session, VersionSpan
from tests.suite.pairs import of, pairs
from tests.train.forked import Segment, Turn, session_of
from tests.train.loss_references import SETTINGS
from tests.train.naive_steps import NaivePpo, NaiveRun, rows_of
from tests.train.naive_turns import NaiveGigpo, NaivePrime, NaiveRae, NaiveRemax, NaiveVine
from tests.train.test_advantages import FORMULAS
from tests.train.trees import as_group, environment_node, linear_session, sampled_node

STEPS = 2
TOLERANCE = 1e-3
"""The most that weights may differ, as a part of how far they moved."""

CORRECTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "decoupled": {"proximal": "recomputed", "weight": "token", "weight_max": 1.2},
    "icepop": {"weight": "token", "mask_token": (0.7, 1.4)},
    "mis": {"weight": "session", "weight_max": 1.5, "mask_session": (0.3, 3.0)},
    "negative": {"mask_negative": 0.05},
}
LOSSES = ("clipped", "cispo", "dppo", "gmpo", "gspo", "importance_sampling", "topr")
WHOLE = ("gmpo", "gspo")
"""Ratios of a sequence, whose gradient a token's weight divides otherwise (`test_corrections`)."""
TRAINING: dict[str, dict[str, Any]] = {
    "plain": {},
    "kl": {"kl_coef": 0.3, "kl_target": 0.01, "weight_decay": 0.1},
    "bonus": {"entropy_coef": 0.02, "schedule": "cosine", "warmup_steps": 1, "max_grad_norm": 0.05},
}
ALGORITHMS = sorted({*FORMULAS} - {"gigpo", "gspo", "magrpo"} | {"remax"})
"""Those whose turns all have their session's advantage; `gspo` is grpo with a loss."""
RUNS: dict[str, type[NaiveRun]] = {
    **{"ppo": NaivePpo, "rae": NaiveRae, "remax": NaiveRemax},
    **{"gigpo": NaiveGigpo, "vine": NaiveVine, "prime": NaivePrime},
}
"""Those that are more than a session's formula."""
NORMALIZE = ("rollout", "token", "turn", "group", "constant")
MATRIX = [
    case | {"algo": ALGORITHMS[i % len(ALGORITHMS)], "normalize": NORMALIZE[i % 5], "budget": (25, 10_000)[i % 2]}
    for i, case in enumerate(
        pairs(loss=LOSSES, correction=[*CORRECTIONS], training=[*TRAINING], minibatches=(1, 2, 3), epochs=(1, 2))
    )
]
FEW = pairs(
    loss=("clipped", "gspo", "topr"), correction=("none", "decoupled", "mis"), minibatches=(1, 2), epochs=(1, 2)
)


def settings_of(case: dict[str, Any]) -> AlgoConfig:
    loss, correction = case["loss"], case["correction"]
    if loss in WHOLE and correction in ("decoupled", "icepop"):
        correction = "mis"
    own = {"name": loss, **SETTINGS.get(loss, [{}])[0]}
    tree = {"name": case["algo"], "loss": own, "correction": CORRECTIONS[correction], "lr": 3e-3, "betas": (0.8, 0.9)}
    more = {name: case[name] for name in ("normalize", "minibatches", "epochs")} | {"constant_tokens": 7}
    return algorithm_settings(tree | more | TRAINING[case["training"]])


def batch(seed: int, number: int, needs: Needs) -> list[Group]:
    """Groups of two or three sessions of one to three turns, some in several ways; one group has no signal.

    No two sessions share a sampled token: a session's paths are rows of their own.
    """
    forks = not needs.values
    rng, groups = random.Random(seed), []
    for g in range(4):
        members = []
        for i in range(rng.randint(2, 3)):
            name = f"{number}-{g}-{i}"
            reward = 0.5 if g == 3 else float(i % 2 if i < 2 else rng.choice((0.0, 0.5, 1.0)))
            turns = [turn(rng, 8 + i) for _ in range(rng.randint(1, 3))]
            if needs.branches:
                members.append(continued(rng, name, turns, reward, g))
                continue
            session = linear_session(name, [8, 9, 10 + g], turns, reward=reward, group=f"{number}-{g}")
            if forks and rng.random() < 0.3:
                sampled_node(session, environment_node(session, 1, [4]).id, turn(rng, 20))
            session.rewards = {"right": reward, "short": 1 / sum(map(len, turns))}
            members.append(session)
        if needs.greedy:
            beside = linear_session(f"{number}-{g}-x", [8, 9, 10 + g], [turn(rng, 30)], reward=rng.choice((0.0, 0.25)))
            beside.phase = GREEDY
            members.append(beside)
        groups.append(as_group(members, f"{number}-{g}"))
    return groups


def continued(rng: random.Random, name: str, turns: Sequence[list[int]], reward: float, number: int) -> Session:
    """A session with two continuations from the state before each turn, which are not trained."""
    below: list[Segment] = []
    for ids in reversed(turns):
        others = [[Turn(turn(rng, 20 + i), [], 0.0)] for i in range(2)]
        below = [
            Segment([Turn(ids, [-3.5] * len(ids), 0.0)], outcome=reward, below=below),
            *(Segment([Turn(t.ids, [-3.5] * len(t.ids), 0.0)], outcome=rng.random()) for [t] in others),
        ]
    return session_of(name, Segment([], below=below), [8, 9, 10 + number], trained=False)


def turn(rng: random.Random, first: int) -> list[int]:
    return [first, *(rng.randrange(8, 40) for _ in range(rng.randint(0, 3)))]


def sample(groups: Sequence[Group], policy: NaiveRun, seed: int) -> None:
    """Set what the engine reported: the policy's log-probabilities, less exactly for turns of an older version."""
    generator = torch.Generator().manual_seed(seed)
    rows = [row for group in groups for session in group.sessions for row in rows_of(session)]
    with torch.no_grad():
        known = policy.by_turn(rows, policy.logps(policy.model, rows)[0])
    for place, node in enumerate(n for g in groups for s in g.sessions for n in s.nodes if any(n.trainable)):
        version = policy.version - (place % 2 if policy.version else 0)
        node.versions = [VersionSpan(version, node.versions[0].start, len(node.token_ids))]
    for group in groups:
        for session in group.sessions:
            for node in (n for n in session.nodes if any(n.trainable)):
                logp = known[session.id, node.id]
                spread = 0.05 if node.versions[0].version == policy.version else 0.5
                noise = spread * (torch.rand(len(logp), generator=generator, dtype=torch.float64) - 0.5)
                told = (logp + noise).float().tolist()
                node.logprobs = [0.0] * (len(node.logprobs) - len(told)) + told


def order_of(groups: Sequence[Group], credit: Credit, algo: AlgoConfig, seed: int) -> list[list[list[str]]]:
    """For each epoch and update the sessions in it."""
    if algo.minibatches == 1:
        return [[[s.id for g in groups for s in g.scored]]] * algo.epochs
    places = updates_of(groups, credit, algo, seed)
    order: list[list[list[str]]] = [[[] for _ in range(algo.minibatches)] for _ in range(algo.epochs)]
    for group in groups:
        for updates, member in zip(order, places[group.id], strict=True):
            updates[member.place] += [session.id for session in group.scored]
    return order


def distance(ours: dict[str, Tensor], theirs: NaiveRun, before: dict[str, Tensor]) -> float:
    """How far the weights are apart, as a part of how far they moved."""
    apart = moved = 0.0
    for name, tensor in ((name, tensor.detach()) for name, tensor in theirs.parameters()):
        counted = ~theirs.noise[name]
        apart += float((ours[name].double() - tensor)[counted].square().sum())
        moved += float((tensor - before[name])[counted].square().sum())
    return (apart / moved) ** 0.5 if moved else float(apart > 0)


def values_of(trainer: Any, algorithm: Algorithm, groups: Sequence[Group], budget: int) -> Values | None:
    """What a run would compute before credit."""
    if algorithm.needs.reward_model:
        return per_token(groups, trainer.token_rewards, budget)
    return compute_values(trainer, groups, algorithm.critic_config, budget) if algorithm.needs.critic else None


def compare(trainer: Trainer, model: Any, algo: AlgoConfig, budget: int) -> None:
    """Take steps on both sides, each on what the policy of that moment sampled; the second has older turns besides."""
    algorithm = make_algorithm(algo)
    naive = RUNS.get(algo.name, NaiveRun)(copy.deepcopy(model), algo, STEPS)
    for step in range(STEPS):
        groups = batch(10 * step + 1, step, algorithm.needs)
        sample(groups, naive, step)
        before = {name: tensor.detach().clone() for name, tensor in naive.parameters()}
        values = values_of(trainer, algorithm, groups, budget)
        credit, forests = pack_credited(algorithm, groups, values, budget, seed=step)
        metrics = trainer.step(forests, algorithm.snapshot())
        algorithm.learned(metrics)
        naive.step(groups, order_of(groups, credit, algo, step))
        assert trainer.version == naive.version
        ours = dict(trainer.weights())
        apart = distance(ours, naive, before)
        assert apart < TOLERANCE
        with torch.no_grad():  # so that each step is compared by itself
            for name, tensor in naive.parameters():
                tensor.copy_(ours[name])
        assert algorithm.adaptive.kl_coef == pytest.approx(naive.kl_coef, rel=1e-4)
        assert metrics.get("minibatches", 1) == algo.minibatches
        assert metrics["loss"] == pytest.approx(fmean(naive.losses), rel=1e-3, abs=1e-5)
        assert metrics["grad_norm"] == pytest.approx(max(naive.norms[-algo.minibatches :]), rel=1e-3)


@pytest.fixture(scope="module")
def ranks(tiny_llama: Path) -> Iterator[FsdpTrainer]:
    trainer = FsdpTrainer(tiny_llama, FsdpConfig(ranks=2, device="cpu", threads=1, timeout=300))
    yield trainer
    trainer.close()


@pytest.fixture(scope="module")
def model(tiny_llama: Path) -> Any:
    made = AutoModelForCausalLM.from_pretrained(tiny_llama, attn_implementation="eager", dtype=torch.float64)
    return made.eval()


@pytest.fixture(scope="module")
def trainer(tiny_llama: Path) -> TorchTrainer:
    return TorchTrainer(tiny_llama, TorchConfig(device="cpu", threads=1))


@pytest.mark.slow
@pytest.mark.parametrize("case", MATRIX, ids=lambda case: "-".join(map(str, case.values())))
def test_steps_on_one_process_are_those_of_a_loop_over_rows(
    case: dict[str, Any], trainer: TorchTrainer, model: Any
) -> None:
    algo = settings_of(case)
    trainer.model.load_state_dict(model.state_dict())
    trainer.begin(algo, STEPS)
    trainer.version = 0
    compare(trainer, model, algo, case["budget"])


@pytest.mark.slow
@pytest.mark.parametrize(("minibatches", "epochs", "normalize"), [(2, 1, "rollout"), (3, 2, "token")])
def test_steps_with_a_critic_are_those_of_a_loop_over_rows(
    minibatches: int, epochs: int, normalize: str, trainer: TorchTrainer, model: Any
) -> None:
    """In the second step advantages are by a critic that has learned.

    It begins at the mean return, where all of a step has no gradient for its bias, but each of two parts has.
    """
    tree = {"name": "ppo", "minibatches": minibatches, "epochs": epochs, "normalize": normalize, "lr": 3e-3}
    algo = algorithm_settings(tree | {"value_epochs": 3, "warmup_steps": 1, "schedule": "linear", "value_coef": 0.5})
    trainer.model.load_state_dict(model.state_dict())
    trainer.begin(algo, STEPS)
    trainer.version = 0
    compare(trainer, model, algo, 60)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "minibatches", "epochs", "correction"),
    [("gigpo", 2, 2, "icepop"), ("vine", 1, 2, "none"), ("vine", 2, 1, "decoupled"), ("prime", 2, 2, "mis")],
)
def test_steps_that_judge_turns_and_tokens_are_those_of_a_loop_over_rows(
    name: str, minibatches: int, epochs: int, correction: str, trainer: TorchTrainer, model: Any
) -> None:
    """In the second step the reward model of `prime` has learned, and differs from the reference."""
    case = {"algo": name, "loss": "clipped", "correction": correction, "training": "plain", "normalize": "rollout"}
    algo = settings_of(case | {"minibatches": minibatches, "epochs": epochs})
    trainer.model.load_state_dict(model.state_dict())
    trainer.begin(algo, STEPS)
    trainer.version = 0
    compare(trainer, model, algo, 60)


@pytest.mark.slow
def test_steps_on_megatrons_ranks_are_those_of_a_loop_over_rows(tiny_llama: Path, model: Any) -> None:
    pytest.importorskip("megatron.core")
    case = {"algo": "rloo", "loss": "clipped", "correction": "mis", "training": "kl", "normalize": "group"}
    algo = settings_of(case | {"minibatches": 2, "epochs": 2})
    config = MegatronConfig.model_validate({"ranks": 2, "timeout": 300})
    made = make_trainer(tiny_llama, config, algo, total_steps=STEPS)
    try:
        compare(made, model, algo, 60)
    finally:
        made.close()


@pytest.mark.slow
@pytest.mark.parametrize(*of(FEW))
def test_steps_on_ranks_are_those_of_a_loop_over_rows(
    loss: str, correction: str, minibatches: int, epochs: int, ranks: FsdpTrainer, tiny_llama: Path, model: Any
) -> None:
    case = {"algo": "grpo", "loss": loss, "correction": correction, "training": "kl", "normalize": "token"}
    algo = settings_of(case | {"minibatches": minibatches, "epochs": epochs})
    ranks.build(tiny_llama, ranks.config, make_algorithm(algo), STEPS)
    ranks.version = 0
    compare(ranks, model, algo, 60)
