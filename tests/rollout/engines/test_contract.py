"""The contract, kept by the local engine; and the suite, which notices engines that don't."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.config import EngineConfig
from agentrl.models.tokenizers import load_tokenizer
from agentrl.rollout.engines.contract import CHECKS, EngineSubject, check_engine
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.types import Chunk, Engine, Sampling, Turn
from tests.rollout.engines.conftest import reference, two_layers_of

OF_ITS_DEPTH = ("logprobs_are_those_of_scoring", "prefixes_are_reused")
"""What thirty layers may add up to more than two."""
OF_ITS_WIDTH = (
    "stop_strings_end_a_turn",
    "greedy_takes_the_most_probable",
    "other_requests_change_nothing",
    "publications_are_whole",
)
"""What its tokenizer, its 49,152 tokens and the shapes of its products decide, in each layer alike."""


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.slow
async def test_the_local_engine_keeps_its_contract(name: str, engine: LocalEngine, folder: Path, model: Any) -> None:
    assert engine.capabilities.deterministic
    subject = EngineSubject(engine, load_tokenizer(folder), reference(model), lambda: model.state_dict().items())
    await CHECKS[name](subject)


@pytest.mark.slow
async def test_the_contract_is_kept_with_two_threads_as_well(folder: Path) -> None:
    engine = LocalEngine(folder, EngineConfig(max_batch=24, device="cpu", threads=2))
    assert engine.capabilities.deterministic
    await CHECKS["other_requests_change_nothing"](EngineSubject(engine))
    await engine.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("layers", "names"), [(30, OF_ITS_DEPTH), (2, OF_ITS_WIDTH)], ids=["whole", "two layers"])
async def test_smollm2_keeps_the_numbers_and_the_text_of_the_contract(
    layers: int, names: Sequence[str], smollm: Path, tmp_path: Path
) -> None:
    """What depends on a model's size, weights and tokenizer; the rest is the same code as under a tiny model."""
    from transformers import AutoModelForCausalLM

    path = smollm if layers == 30 else two_layers_of(smollm, tmp_path / "model")
    config = EngineConfig(max_batch=4, max_context=112, device="cpu")
    plain = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    engine = LocalEngine(path, config)
    weights = lambda: plain.state_dict().items()  # noqa: E731
    subject = EngineSubject(engine, load_tokenizer(path), reference(plain), weights, samples=400, requests=2)
    try:
        for name in names:
            await CHECKS[name](subject)
    finally:
        await engine.close()


class Broken:
    """An engine with one thing wrong; everything else is passed on."""

    def __init__(self, engine: Engine, fault: str) -> None:
        self._engine, self._fault = engine, fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(
        self, request_id: str, input_ids: Sequence[int], sampling: Sampling, deadline: float | None = None
    ) -> AsyncIterator[Chunk | Turn]:
        if self._fault == "temperature is forgotten":
            sampling = dataclasses.replace(sampling, temperature=min(sampling.temperature, 1.0))
        if self._fault == "seeds are ignored":
            sampling = dataclasses.replace(sampling, seed=None)
        if self._fault == "stop tokens are ignored":
            sampling = dataclasses.replace(sampling, stop_token_ids=())
        async for item in self._engine.generate(request_id, input_ids, sampling, deadline):
            if self._fault == "logprobs are off" and isinstance(item, Turn):
                item = dataclasses.replace(item, logprobs=tuple(value + 1e-3 for value in item.logprobs))
            if self._fault == "chunks are lost" and isinstance(item, Chunk):
                continue
            yield item


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("temperature is forgotten", "logprobs_are_those_of_scoring"),
        ("seeds are ignored", "other_requests_change_nothing"),
        ("stop tokens are ignored", "stop_tokens_end_a_turn"),
        ("logprobs are off", "logprobs_are_those_of_scoring"),
        ("chunks are lost", "chunks_add_up_to_the_turn"),
    ],
)
@pytest.mark.slow
async def test_the_suite_notices_a_broken_engine(fault: str, check: str, engine: LocalEngine) -> None:
    subject = EngineSubject(Broken(engine, fault), requests=6)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        await CHECKS[check](subject)


class Skewed(Broken):
    """Draws its tokens hotter than it says."""

    async def generate(
        self, request_id: str, input_ids: Sequence[int], sampling: Sampling, deadline: float | None = None
    ) -> AsyncIterator[Chunk | Turn]:
        hot = dataclasses.replace(sampling, temperature=sampling.temperature * 1.5)
        async for item in self._engine.generate(request_id, input_ids, hot, deadline):
            if isinstance(item, Turn):
                told = await self._engine.score([*input_ids, *item.token_ids], sampling.temperature)
                item = dataclasses.replace(item, logprobs=tuple(told[len(input_ids) :]))
            yield item


@pytest.mark.slow
async def test_draws_that_do_not_follow_their_logprobs_are_noticed(engine: LocalEngine) -> None:
    with pytest.raises(AssertionError, match="chi-square"):
        await CHECKS["samples_follow_the_softmax"](EngineSubject(Skewed(engine, "")))  # type: ignore[arg-type]


@pytest.mark.slow
async def test_the_suite_reports_instead_of_raising(folder: Path) -> None:
    def make() -> Engine:
        engine = LocalEngine(folder, EngineConfig(max_batch=4, device="cpu"))
        return Broken(engine, "chunks are lost")  # type: ignore[return-value]

    found = await check_engine(make, samples=20, requests=2)
    assert "chunks_add_up_to_the_turn" in {finding.check for finding in found}
