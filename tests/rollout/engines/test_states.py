"""The local engine plays models whose layers carry a state from token to token."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from agentrl.config import EngineConfig
from agentrl.models.small import VOCABULARY, small_model
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.train.trainers.proof.comparison import compare
from agentrl.types import Sampling, Turn
from tests.train.backends.test_state_schedule import KINDS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model, why = small_model(AutoConfig.for_model("qwen3_5_text", **KINDS["qwen3_5_text"]))
    assert model is not None, why
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    return path


async def turn(engine: LocalEngine, name: str, ids: list[int]) -> Turn:
    sampling = Sampling(temperature=1.0, max_new_tokens=9, seed=3)
    *_, last = [item async for item in engine.generate(name, ids, sampling)]
    assert isinstance(last, Turn)
    return last


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_paths_are_played_as_rows_mean_them(kind: str) -> None:
    found = compare(AutoConfig.for_model(kind, **KINDS[kind]), subject="local")
    assert found.passed, str(found)


@pytest.mark.slow
async def test_a_next_turn_continues_the_state_and_who_shares_less_computes_anew(folder: Path) -> None:
    engine = LocalEngine(folder, EngineConfig(device="cpu"))
    try:
        assert not engine.capabilities.deterministic
        prompt = [(5 * at + 3) % VOCABULARY for at in range(40)]
        first = await turn(engine, "one/0", prompt)
        longer = [*prompt, *first.token_ids, 7, 8, 9]
        second = await turn(engine, "one/1", longer)
        assert second.cached_tokens == len(longer) - 4  # the turn's last token was never computed
        other = await turn(engine, "two/0", [*prompt, 11, 12])
        assert other.cached_tokens == 0
        for before, played in ((prompt, first), (longer, second), ([*prompt, 11, 12], other)):
            scored = await engine.score([*before, *played.token_ids])
            assert played.logprobs == pytest.approx(scored[len(before) :], abs=1e-4)
    finally:
        await engine.close()


@pytest.mark.slow
async def test_after_a_publication_nothing_is_continued(folder: Path) -> None:
    engine = LocalEngine(folder, EngineConfig(device="cpu"))
    try:
        prompt = [(5 * at + 3) % VOCABULARY for at in range(40)]
        first = await turn(engine, "one/0", prompt)
        weights = [(name, value * 1.1) for name, value in engine.runner.model.state_dict().items()]
        await engine.publish(weights, 1)
        again = [*prompt, *first.token_ids, 7]
        second = await turn(engine, "one/1", again)
        assert second.cached_tokens == 0
        scored = await engine.score([*again, *second.token_ids])
        assert second.logprobs == pytest.approx(scored[len(again) :], abs=1e-4)
    finally:
        await engine.close()
