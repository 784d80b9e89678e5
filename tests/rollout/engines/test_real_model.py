"""Everything real at once: SGLang generates with a real model, Megatron trains it, weights go over after each step."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from benchmarks.fidelity import agreement, random_sessions
from tests.conftest import need
from tests.rollout.engines import servers
from tests.rollout.engines.conftest import two_layers_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
BOUND = 1e-4
"""On |Δ log-probability| in float32, the largest."""


@pytest.fixture(scope="module")
def two_layers(smollm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_layers_of(smollm, tmp_path_factory.mktemp("models") / "smollm2-two-layers")


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """A server's address, which nobody else needs."""
    yield from servers.served("sglang", folder, dtype="float32", max_context=1024, server={"max_total_tokens": 8000})


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    """Word problems in GSM8K's form."""
    path = tmp_path / "problems.jsonl"
    with path.open("w") as file:
        for have in range(2, 26):
            question = f"Ann has {have} pens and buys {have + 3} more. How many pens does Ann have?"
            answer = f"Ann has {have}+{have + 3}=<<{have}+{have + 3}={2 * have + 3}>>{2 * have + 3} pens."
            file.write(json.dumps({"question": question, "answer": f"{answer}\n#### {2 * have + 3}"}) + "\n")
    return path


def test_sglang_in_float32_agrees_with_the_trainer_on_a_real_model(smollm: Path) -> None:
    async def draw(url: str) -> Any:
        engine = servers.attached("sglang", smollm, url, max_context=1000)
        try:
            return await random_sessions(engine, 16, seed=1)
        finally:
            await engine.close()

    with server(smollm) as url:
        sessions = asyncio.run(draw(url))
    found = agreement(TorchTrainer(smollm), sessions)
    assert found.tokens > 250
    assert found.max <= BOUND, f"{found}"


def test_a_real_model_is_trained_by_megatron_on_what_sglang_generates_with_its_newest_weights(
    tmp_path: Path, problems: Path, two_layers: Path
) -> None:
    need(importlib.util.find_spec("megatron") is not None, "megatron-core is not installed")
    settings = servers.config("sglang").model_dump(exclude={"name"})
    with server(two_layers) as url:
        result = agentrl.train(
            "gsm8k",
            env={"path": str(problems)},
            model=str(two_layers),
            engine={**settings, "name": "sglang", "url": url, "max_context": 1024},
            trainer={"name": "megatron", "token_budget": 512},
            # Its turns never end, and a penalty for that is something to learn from.
            algo={"name": "reinforce", "lr": 1e-5, "shaping": {"truncated_penalty": 0.5}},
            rollout={"groups_per_step": 2, "group_size": 2, "turn_tokens": 48, "max_turns": 2},
            eval={"tasks": 2, "n": 1},
            steps=3,
            checkpoint_every=100,  # a checkpoint's writer is a copy of the rank, and takes 1.5 GB
            run_dir=str(tmp_path / "run"),
        )
    rows = result.metrics
    assert [row["version"] for row in rows] == [1, 2, 3]
    assert all(row["status/infra_error"] == 0 for row in rows)
    assert all(row["tokens/trained"] > 0 for row in rows)
    assert all(row["mismatch/abs_max"] <= BOUND for row in rows), "the engine is not the trainer"
    assert all(0 <= row["probe/abs_max"] <= BOUND for row in rows), "a publication did not arrive whole"
