"""Routes recorded by the embedded engine: those of a fresh, whole forward pass of transformers' own."""

from __future__ import annotations

import asyncio
import base64
import io
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")


from agentrl.attachments import routed_experts
from agentrl.config import EngineConfig
from agentrl.errors import ConfigError, EngineError
from agentrl.rollout.engines.contract import CHECKS, EngineSubject
from agentrl.rollout.engines.folder import Experts, ModelFacts
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.rollout.engines.local.experts import ExpertRecorder
from agentrl.rollout.engines.servers.open_request import OpenRequest
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.rollout.engines.servers.vllm import VLLMEngine
from agentrl.sessions.tree.generation import generate
from agentrl.types import PauseMode, Sampling, Turn, collect
from tests.rollout.engines.routed import agree, chosen
from tests.train.backends.megatron import zoo

SOON = 120.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zoo.write("qwen3_moe", tmp_path_factory.mktemp("zoo"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[LocalEngine]:
    made = LocalEngine(folder, EngineConfig(max_batch=4, device="cpu", routed_experts=True))
    yield made
    await made.close()


def prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, zoo.VOCABULARY, length).tolist()


def recorded_sampling(start: int, **settings: Any) -> Sampling:
    return Sampling(**settings, record=((routed_experts.NAME, start),))


@pytest.mark.slow
async def test_a_turns_experts_are_those_of_one_forward_pass_over_the_whole_path(
    engine: LocalEngine, model: Any
) -> None:
    """Side by side and in turns, over prefixes that are computed, shared and copied, and rows that grow."""
    assert routed_experts.NAME in engine.capabilities.attachments

    async def session(name: str, ids: list[int]) -> None:
        start, known = 0, None
        for turn in range(3):
            new = 90 if turn == 2 else 9
            drawn = await collect(
                engine.generate(f"{name}/{turn}", ids, recorded_sampling(start, max_new_tokens=new, seed=turn))
            )
            ids = [*ids, *drawn.token_ids]
            known = agree(model, ids, drawn.attachments[routed_experts.NAME], known)
            start = len(known)
            assert start == len(ids) - 1
            ids = [*ids, *prompt(turn, 5)]

    shared = prompt(0, 40)
    await asyncio.gather(*[session(f"s{i}", [*shared, *prompt(i, 1 + 7 * i)]) for i in range(6)])


async def test_a_copied_prefix_brings_its_experts(engine: LocalEngine, model: Any) -> None:
    ids = prompt(1, 48)
    await collect(engine.generate("first/0", ids, Sampling(max_new_tokens=1)))
    drawn = await collect(engine.generate("second/0", ids, recorded_sampling(0, max_new_tokens=3, seed=1)))
    assert drawn.cached_tokens > 0
    assert len(agree(model, [*ids, *drawn.token_ids], drawn.attachments[routed_experts.NAME])) == 50


@pytest.mark.slow
async def test_a_turn_that_was_cut_has_every_tokens_experts_once(engine: LocalEngine, model: Any) -> None:
    ids = prompt(2, 20)
    stream = generate(engine, "cut/0", ids, recorded_sampling(4, max_new_tokens=200, seed=3), time.monotonic() + SOON)
    turn: Turn | None = None
    pauses = 0
    async for item in stream:
        if isinstance(item, Turn):
            turn = item
        elif pauses < 2:
            pauses += 1
            await engine.pause(PauseMode.ABORT)
            await engine.resume()
    assert turn is not None
    assert len(agree(model, [*ids, *turn.token_ids], turn.attachments[routed_experts.NAME])) == 20 + 200 - 1 - 4


@pytest.mark.slow
async def test_a_mixture_keeps_the_contract_on_routed_experts(engine: LocalEngine) -> None:
    await CHECKS["routed_experts_are_those_requested"](EngineSubject(engine))


class Late:
    """Gives each token the experts of the one before it, as an engine does that counts by what it samples."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine, self.capabilities = engine, engine.capabilities

    async def generate(self, request_id: str, ids: list[int], sampling: Sampling, deadline: Any) -> AsyncIterator[Any]:
        async for item in self.engine.generate(request_id, ids, sampling, deadline):
            if isinstance(item, Turn) and item.attachments:
                rows = routed_experts.unpack(item.attachments[routed_experts.NAME])
                shifted = routed_experts.pack(np.concatenate((rows[:1], rows[:-1])), 8)
                item = replace(item, attachments={routed_experts.NAME: shifted})
            yield item


@pytest.mark.slow
async def test_the_contract_notices_experts_that_are_off_by_a_token(engine: LocalEngine) -> None:
    with pytest.raises(AssertionError, match="not exactly the last token's routed experts are unknown"):
        await CHECKS["routed_experts_are_those_requested"](EngineSubject(Late(engine)))  # type: ignore[arg-type]


@pytest.mark.slow
async def test_only_a_request_for_routed_experts_gets_them(engine: LocalEngine, folder: Path) -> None:
    assert (await collect(engine.generate("s/0", [1, 2], Sampling(max_new_tokens=2)))).attachments == {}
    off = LocalEngine(folder, EngineConfig(max_batch=4, device="cpu"))
    try:
        assert routed_experts.NAME not in off.capabilities.attachments
        assert off.runner.arena.routed_experts is None
        hooks = [module._forward_pre_hooks for module in off.runner.model.modules()]
        assert not any(hooks)
        turn = await collect(off.generate("s/0", [1, 2], recorded_sampling(0, max_new_tokens=2)))
        assert turn.attachments == {}
    finally:
        await off.close()


def test_a_model_without_experts_is_refused(tmp_path: Path) -> None:
    folder = zoo.write("qwen3", tmp_path / "dense")
    with pytest.raises(ConfigError, match=r"engine.routed_experts=true: model='.*dense' has no experts"):
        LocalEngine(folder, EngineConfig(max_batch=2, device="cpu", routed_experts=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(zoo.CASES))
def test_a_folders_configuration_names_the_layers_with_experts(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    found = ModelFacts.read(zoo.write(name, tmp_path)).experts
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    sparse = tuple(place for place, layer in enumerate(model.model.layers) if hasattr(layer.mlp, "experts"))
    recorder = ExpertRecorder(model)
    assert recorder.layers == len(sparse)
    if not sparse:
        assert found is None
    else:
        assert found == Experts(recorder.experts, recorder.topk, sparse, zoo.LAYERS)


def test_the_references_own_experts_do_not_depend_on_what_comes_after(model: Any) -> None:
    ids = prompt(5, 30)
    whole, _ = chosen(model, ids)
    begun, _ = chosen(model, ids[:20])
    assert whole.shape == (30, zoo.LAYERS - 1, 2)
    assert np.array_equal(whole[:20], begun)


# ------------------------------------------------------------------------------ what servers tell, without one


def open_request(start: int | None = 1) -> OpenRequest:
    return OpenRequest(
        "s/0",
        [1, 2, 3],
        Sampling(max_new_tokens=4) if start is None else recorded_sampling(start, max_new_tokens=4),
        4,
        0,
    )


def attached(folder: Path) -> VLLMEngine:
    return VLLMEngine(folder, ServerConfig(name="vllm", device="cpu", url="http://127.0.0.1:9", routed_experts=True))


def pumped(engine: VLLMEngine, request: OpenRequest, ended: dict[str, Any]) -> list[dict[str, Any]]:
    """Let the engine's client answer one event; what it was asked."""
    bodies: list[dict[str, Any]] = []
    logprobs = {"content": [{"logprob": -1.0}] * 2}

    async def generate(body: dict[str, Any], headers: Any) -> AsyncIterator[list[dict[str, Any]]]:
        bodies.append(body)
        yield [{"choices": [{"token_ids": [4, 5], "logprobs": logprobs, **ended}]}]

    engine.client.generate = generate  # type: ignore[assignment,method-assign]
    return bodies


async def test_vllms_experts_are_read_from_numpys_own_format_without_the_layers_that_have_no_experts(
    folder: Path,
) -> None:
    sent = np.random.default_rng(0).integers(0, 8, (3, zoo.LAYERS, 2)).astype(np.uint8)
    packed = io.BytesIO()
    np.save(packed, sent)
    engine, request = attached(folder), open_request()
    text = base64.b64encode(packed.getvalue()).decode()
    bodies = pumped(engine, request, {"finish_reason": "length", "routed_experts": text})
    turn = await engine._pump(request)
    assert turn.attachments[routed_experts.NAME] is not None
    assert np.array_equal(routed_experts.unpack(turn.attachments[routed_experts.NAME])[:-1], sent[:, 1:])
    assert routed_experts.unknown_at_end(turn.attachments[routed_experts.NAME]) == 1
    assert bodies[0]["sampling_params"]["routed_experts_prompt_start"] == 1
    engine, request = attached(folder), open_request(None)
    bodies = pumped(engine, request, {"finish_reason": "length"})
    assert (await engine._pump(request)).attachments == {}
    assert "routed_experts_prompt_start" not in bodies[0]["sampling_params"]


async def test_a_vllm_that_returns_no_experts_is_refused_unless_it_was_cut(folder: Path) -> None:
    engine, request = attached(folder), open_request()
    pumped(engine, request, {"finish_reason": "length"})
    with pytest.raises(ConfigError, match="returns none; start it with --enable-return-routed-experts"):
        await engine._pump(request)
    engine, request = attached(folder), open_request()
    pumped(engine, request, {"finish_reason": "abort"})
    assert (await engine._pump(request)).attachments == {}
    with pytest.raises(ConfigError, match="vllm can't record them on a CPU"):
        VLLMEngine(folder, ServerConfig(name="vllm", device="cpu", routed_experts=True))


def test_experts_of_another_number_of_tokens_are_an_error_that_names_the_request() -> None:
    request = open_request()
    request.take([4, 5], [-1.0, -1.0], 0)
    with pytest.raises(EngineError, match=r"request 's/0': .* \(4, 3, 2\) arrived; expected \(3, 3, 2\)"):
        request.add_experts(np.zeros((4, 3, 2), int), 1, Experts(8, 2, (0, 1, 2), 3))
