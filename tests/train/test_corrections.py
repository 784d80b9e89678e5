"""Corrections for tokens that another policy sampled, held against formulas written out for every path as a row."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentrl.config import AlgoConfig, CorrectionConfig
from agentrl.errors import ConfigError
from agentrl.overrides import validate
from agentrl.train.algorithms import algorithm_settings, make_algorithm
from agentrl.train.algorithms.credit import Credit, NodeKey
from agentrl.train.algorithms.objective import Meter, add_sums, empty_sums, objective
from agentrl.train.algorithms.policy_losses import LOSSES
from agentrl.train.algorithms.tokens import old_policy
from agentrl.train.forest.forest import sequence_count
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Node, Session
from tests.train.loss_references import REFERENCES, SETTINGS, ppo
from tests.train.test_sequences import table_logps
from tests.train.trees import VOCABULARY, as_group, leaf_credit, leaves, linear_session, path, random_session

LOW, HIGH = 0.1, 0.2
VERSION = 500_000
"""About half of the tokens of `random_session` are of an older one."""

Policies = tuple[Tensor, Tensor, Tensor]
"""Log-probabilities of some tokens under the current, the proximal and the sampling policy."""


def algorithm(loss: str, own: dict[str, Any] | None = None, **correction: Any) -> AlgoConfig:
    own = SETTINGS.get(loss, [{}])[0] if own is None else own
    return algorithm_settings({"name": "grpo", "loss": {"name": loss, **own}, "correction": correction})


def policies(session: Session, node: Node, tables: Tensor, config: CorrectionConfig) -> Policies:
    """Of a node's trained tokens."""
    before = sum(len(each.token_ids) for each in path(session, node.parent)) if node.parent is not None else 0
    at = torch.tensor([i for i, trained in enumerate(node.trainable) if trained])
    current, old = (table_logps(table, torch.tensor(node.token_ids)[at], at + before) for table in tables)
    sampled = torch.tensor(node.logprobs)[at].double()
    stale = node.versions[0].version < VERSION
    return current, sampled if stale and config.proximal == "behaviour" else old.detach(), sampled


def ratio(each: Policies, mean: bool = False) -> Tensor:
    """The proximal policy's to the sampling one's, over all tokens."""
    logs = each[1] - each[2]
    return (logs.mean() if mean else logs.sum()).exp()


def weights(config: CorrectionConfig, turn: Policies, whole: Policies, advantage: float) -> Tensor:
    """Of a turn's tokens on a path, by the papers that `agentrl.train.algorithms.corrections` names."""
    tokens = (turn[1] - turn[2]).exp()
    raw = {
        "none": torch.ones_like(tokens),
        "token": tokens,
        "turn": ratio(turn, config.weight_mean),
        "session": ratio(whole, config.weight_mean),
    }[config.weight]
    found = torch.ones_like(tokens) * raw
    if config.weight != "none":
        found = found.clamp(config.weight_min, config.weight_max)
    for bounds, each in (
        (config.mask_token, tokens),
        (config.mask_turn, ratio(turn, config.mask_mean)),
        (config.mask_session, ratio(whole, config.mask_mean)),
    ):
        if bounds is not None:
            found = found * ((each >= bounds[0]) & (each <= bounds[1]))
    if config.mask_negative is not None and advantage < 0:
        found = found * (float((whole[2] - whole[0]).mean().detach()) <= config.mask_negative)
    return found.detach()


def naive(
    sessions: Sequence[Session], credit: Credit, judged: dict[NodeKey, float], tables: Tensor, algo: AlgoConfig
) -> Tensor:
    """The loss, each path from a root to a leaf on its own."""
    config, total = algo.correction, torch.zeros((), dtype=torch.float64)
    own = algo.loss  # type: ignore[attr-defined]
    for session in sessions:
        for leaf in leaves(session):
            turns = [node for node in path(session, leaf) if (session.id, node.id) in credit.shares]
            if not turns:
                continue
            found = [policies(session, node, tables, config) for node in turns]
            whole: Policies = tuple(torch.cat(each) for each in zip(*found, strict=True))  # type: ignore[assignment]
            advantage = judged[session.id, leaf]
            row = REFERENCES[own.name](whole[0], whole[1], advantage, own)
            at = 0
            for node, turn in zip(turns, found, strict=True):
                weight = credit.shares[session.id, node.id][0].weight
                value = row[at : at + len(turn[0])]
                at += len(turn[0])
                total = total + (weight * weights(config, turn, whole, advantage) * value).sum()
    return total


def ours(
    sessions: Sequence[Session], credit: Credit, tables: Tensor, algo: AlgoConfig, budget: int, seed: int
) -> tuple[Tensor, dict[str, float]]:
    """The loss and what is logged, in the second of two updates: `tables` are of current and proximal policy."""
    made, found, meter = make_algorithm(algo), torch.zeros((), dtype=torch.float64), Meter()
    forests = pack([as_group(sessions)], credit, budget, seed=seed, merge="channels", sequence=made.sequence)
    sums = empty_sums(made, sequence_count(forests))
    for last in (False, True):
        for forest in forests:
            rows = forest.rows()
            place = forest.position[rows.target]
            logp, old = (table_logps(table, rows.token_ids, place) for table in tables)
            rows.old_logp = old_policy(old, rows, VERSION, algo.correction.proximal).double()
            rows.behaviour_logp = rows.behaviour_logp.double()
            if last:
                loss, tokens = objective(made, logp, torch.zeros_like(logp), rows, version=VERSION, sums=sums)
                found = found + loss
                meter.add(tokens, rows, engine=True, first=True)
            elif made.sequence is not None:
                add_sums(made, sums, logp, rows, VERSION)
    return found, meter.metrics()


CORRECTIONS: list[dict[str, Any]] = [
    {"weight": "token"},
    {"weight": "token", "weight_max": 1.1, "weight_min": 0.9},
    {"weight": "token", "mask_token": (0.8, 1.2)},  # IcePop
    {"weight": "turn", "weight_max": 1.5},
    {"weight": "session", "weight_max": 2.0},
    {"weight": "session", "weight_mean": True, "mask_session": (0.0, 1.05), "mask_mean": True},
    {"weight": "session", "mask_session": (0.0, 2.0)},  # MIS
    {"weight": "turn", "weight_mean": True, "mask_session": (0.2, 3.0), "mask_turn": (0.5, 2.0)},
    {"mask_negative": 0.02},
    {"weight": "token", "mask_negative": 0.02, "mask_token": (0.7, 1.4), "mask_turn": (0.5, 2.0)},
]


@pytest.mark.parametrize(  # over batches: test_covariance
    "loss",
    sorted(name for name in {*LOSSES.known()} - {"clip_cov", "kl_cov"} if LOSSES.find(name).compares is None),
)
@given(
    seed=st.integers(0, 10**6),
    budget=st.sampled_from((30, 10_000)),
    proximal=st.sampled_from(("behaviour", "recomputed")),
    correction=st.sampled_from([{}, {}, *CORRECTIONS]),
    data=st.data(),
)
@settings(deadline=None, max_examples=8)
@pytest.mark.slow
def test_loss_and_gradient_are_those_of_every_path_as_a_row_whatever_the_split(
    loss: str, seed: int, budget: int, proximal: str, correction: dict[str, Any], data: st.DataObject
) -> None:
    """A ratio over a session has corrections over sessions here: what parts of its ratio weigh is another test's."""
    if loss in ("gspo", "gmpo") and (
        correction.get("weight") in ("token", "turn") or {"mask_token", "mask_turn"} & {*correction}
    ):
        correction = {"weight": "session", "weight_max": 1.2, "mask_negative": 0.02}
    rng = random.Random(seed)
    prompt = [rng.randrange(8, 48) for _ in range(rng.randint(1, 6))]
    sessions = [random_session(rng, f"s{i}", prompt, depth=5, branching=3) for i in range(3)]
    credit, judged = leaf_credit(rng, sessions)
    algo = algorithm(loss, data.draw(st.sampled_from(SETTINGS.get(loss, [{}]))), proximal=proximal, **correction)
    generator = torch.Generator().manual_seed(seed)
    tables = (0.2 * torch.randn(2, VOCABULARY, generator=generator, dtype=torch.float64)).requires_grad_()

    found_loss, metrics = ours(sessions, credit, tables, algo, budget, seed)
    expected = naive(sessions, credit, judged, tables, algo)
    if not expected.requires_grad:
        return  # nothing is trained
    (found,), (theirs,) = (torch.autograd.grad(each, tables) for each in (found_loss, expected))
    assert found_loss.item() == pytest.approx(expected.item(), rel=1e-6, abs=5e-6)  # A log π of float32 parts cancels
    assert float((found - theirs).abs().max()) < 1e-6 * max(1.0, float(theirs.abs().max()))
    if correction:
        assert 0 <= metrics["correction/effective_sample_size"] <= 1 + 1e-9
        masks = [value for key, value in metrics.items() if key.startswith("correction/mask_")]
        assert max(masks) == metrics["correction/mask_fraction"] or len(masks) > 2


def ragged(seed: int) -> list[Session]:
    """Sessions of some turns of random lengths."""
    rng = random.Random(seed)
    made = []
    for name, reward in (("a", 1.0), ("b", 0.0), ("c", 0.0)):
        turns = [[rng.randrange(8, 40) for _ in range(rng.randint(1, 6))] for _ in range(rng.randint(1, 4))]
        made.append(linear_session(name, [8, 9], turns, reward=reward))
        for node in made[-1].nodes:
            node.logprobs = [-3.9 + rng.uniform(-0.5, 0.5) if each else 0.0 for each in node.logprobs]
    return made


@pytest.mark.parametrize("correction", CORRECTIONS[:6], ids=str)
def test_a_token_s_part_of_a_sequence_s_gradient_has_the_weight_of_its_token_or_turn(
    correction: dict[str, Any],
) -> None:
    """verl's GSPO, whose ratio at each token is sg(s) * pi / sg(pi), times `rollout_is_weights`; here on rows."""
    sessions = ragged(3)
    algo = algorithm("gspo", **correction)
    credit = make_algorithm(algo).credit([as_group(sessions)])
    tables = 0.2 * torch.randn(2, VOCABULARY, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    tables.requires_grad_()
    expected = torch.zeros((), dtype=torch.float64)
    for session in sessions:
        turns = [node for node in session.nodes if (session.id, node.id) in credit.shares]
        each = [policies(session, node, tables, algo.correction) for node in turns]
        whole: Policies = tuple(torch.cat(parts) for parts in zip(*each, strict=True))  # type: ignore[assignment]
        [share] = credit.shares[session.id, turns[0].id]
        assert isinstance(share.advantage, float)
        c = torch.cat([weights(algo.correction, turn, whole, share.advantage) for turn in each])
        log_s = (whole[0] - whole[1]).mean().detach() + whole[0] - whole[0].detach()
        expected = expected + (share.weight * c * ppo(log_s.exp(), share.advantage, LOW, HIGH)).sum()
    loss, _ = ours(sessions, credit, tables, algo, 30, 0)
    (found,), (theirs,) = (torch.autograd.grad(each, tables) for each in (loss, expected))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert float((found - theirs).abs().max()) < 1e-6


def step(folder: Path, sessions: list[Session], algo: AlgoConfig, budget: int) -> dict[str, float]:
    trainer = TorchTrainer(folder, TorchConfig(device="cpu"), algo)
    trainer.version = 1
    made, groups = trainer.algorithm, [as_group(sessions)]
    return trainer.step(pack(groups, made.credit(groups), budget, merge="channels", sequence=made.sequence))


def test_two_updates_with_corrections_are_the_same_whatever_the_split(tiny_llama: Path) -> None:
    sessions = ragged(5)
    for node in sessions[0].nodes:
        node.versions = [replace(span, version=1) for span in node.versions]
    more = {"weight": "turn", "weight_max": 1.1, "mask_session": (0.05, 20.0), "mask_negative": 0.05}
    algo = algorithm("clipped", proximal="recomputed", **more).model_copy(update={"epochs": 2, "lr": 1e-2})
    whole, split = (step(tiny_llama, sessions, algo, budget) for budget in (1000, 12))
    assert split["tokens/forests"] > whole["tokens/forests"]
    assert 0 < whole["correction/clip_fraction"] < 1
    assert 0 < whole["correction/mask_fraction"] < 1
    kinds = ("correction/", "staleness/", "mismatch/", "policy/", "loss", "grad_norm")
    for name in (name for name in whole if name.startswith(kinds)):
        assert split[name] == pytest.approx(whole[name], rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize(
    ("correction", "said"),
    [
        ({"mask_token": (2.0, 3.0)}, "mask_token=[2, 3] must have 1 inside"),
        ({"weight": "turn", "weight_max": 0.5}, "weight_max=0.5 must have 1 between them"),
        ({"mask_token": 3}, "a list of values, such as [0.5, 2]"),
    ],
    ids=str,
)
def test_settings_that_do_not_go_together_are_refused(correction: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validate(correction, CorrectionConfig)
    assert said in str(refused.value)


@pytest.mark.slow
def test_corrections_over_sessions_of_a_loss_over_turns_are_refused() -> None:
    config = CorrectionConfig(weight="session")
    by_turn = algorithm_settings({"name": "gspo", "loss": {"sequence": "turn"}})
    with pytest.raises(ConfigError, match="the loss of algo="):
        make_algorithm(by_turn.model_copy(update={"correction": config}))
