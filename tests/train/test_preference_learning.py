"""Preferences are learned: held-out margins rise, in a real run online, and its record proves its steps."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from agentrl.train.algorithms import algorithm_settings
from agentrl.train.algorithms.pairs import preference_group
from agentrl.train.forest.packing import pack_credited
from agentrl.train.record.verify import verify
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Group
from tests.train.test_plugins import run
from tests.train.trees import linear_session

GOOD, BAD = range(20, 30), range(30, 40)
"""Tokens that are preferred, and those that are not."""


def planted(rng: random.Random, count: int) -> list[Group]:
    """Pairs of demonstrations behind random prompts; no prompt or completion of one call is another's."""

    def pair(place: int) -> Group:
        prompt = [8, 9, *(rng.randrange(10, 20) for _ in range(4))]
        sides = [[rng.choice(ids) for _ in range(rng.randint(2, 4))] for ids in (GOOD, BAD)]
        name = f"{rng.random()}-{place}"
        return preference_group(
            name, *(linear_session(f"{name}{i}", prompt, [ids], demonstrated=True) for i, ids in enumerate(sides))
        )

    return [pair(place) for place in range(count)]


def margins(trainer: TorchTrainer, groups: list[Group]) -> list[float]:
    """By pair, the mean log-probability of a chosen token less that of a rejected one."""
    sums: dict[tuple[str, bool], list[float]] = {}
    for group in groups:
        _, [forest] = pack_credited(trainer.algorithm, [group], None, 4096, 0)
        [logp] = trainer.logprobs([forest])
        for token, value, weight in zip(forest.token_ids.tolist(), logp.tolist(), forest.weight.tolist(), strict=True):
            if weight:
                sums.setdefault((group.id, token in GOOD), []).append(value)
    return [
        sum(sums[g.id, True]) / len(sums[g.id, True]) - sum(sums[g.id, False]) / len(sums[g.id, False]) for g in groups
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dpo", "simpo", "kto"])
def test_held_out_margins_rise_on_planted_preferences(name: str, tiny_llama: Path) -> None:
    rng = random.Random(3)
    algo = algorithm_settings({"name": name, "lr": 5e-3})
    trainer = TorchTrainer(tiny_llama, TorchConfig(device="cpu"), algo, total_steps=12)
    held_out = planted(rng, 12)
    before = margins(trainer, held_out)
    for _ in range(12):
        trainer.step(pack_credited(trainer.algorithm, planted(rng, 6), None, 4096, 0)[1])
    after = margins(trainer, held_out)
    assert sum(after) / len(after) > sum(before) / len(before) + 1
    assert sum(margin > 0 for margin in after) > 10


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["dpo", "kto"])
def test_an_online_run_learns_from_pairs_or_verdicts_and_its_record_proves_every_step(
    algo: str, tmp_path: Path
) -> None:
    """What KTO measures below other prompts is in no stored session, and is made again from them."""
    rows = run(tmp_path / "run", algo, **{"algo.epochs": 2})
    assert any(row["grad_norm"] > 0 for row in rows)
    assert any(row.get("preference/accuracy", 0) > 0 for row in rows)
    report = verify(tmp_path / "run", weights=True)
    assert report.passed, list(report.lines())
