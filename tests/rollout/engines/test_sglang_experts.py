"""Routes that SGLang itself records: those of transformers' own forward pass, for every token but the last."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from agentrl.attachments import routed_experts, support
from agentrl.errors import ConfigError
from agentrl.rollout.engines.contract import CHECKS, EngineSubject
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.rollout.engines.servers.sglang import SGLangEngine
from agentrl.sessions.tree.generation import generate
from agentrl.types import FinishReason, PauseMode, Sampling, Turn, collect
from tests.rollout.engines import servers
from tests.rollout.engines.conftest import TEXTS
from tests.rollout.engines.routed import agree, mixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
RECORDING = {"max_total_tokens": 4000, "enable_return_routed_experts": True}


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixture(tmp_path_factory.mktemp("moe") / "model", TEXTS)


@pytest.fixture(scope="module")
def moe_model(moe: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(moe).eval()


@pytest.fixture(scope="module")
def moe_url(moe: Path) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        unpinned = str(Path(__file__).parent / "unpinned")
        patch.setenv("PYTHONPATH", ":".join(filter(None, (unpinned, os.environ.get("PYTHONPATH")))))
        yield from servers.served("sglang", moe, server=RECORDING)


@pytest.fixture
async def sglang(moe: Path, moe_url: str) -> AsyncIterator[SGLangEngine]:
    engine = servers.attached("sglang", moe, moe_url, routed_experts=True)
    await engine.start()
    yield engine
    await engine.close()


async def test_a_turns_experts_are_those_of_one_forward_pass_over_the_whole_path(
    sglang: SGLangEngine, moe_model: Any
) -> None:
    dice = np.random.default_rng(0)

    def said(count: int) -> list[int]:
        return [int(token) for token in dice.integers(5, 250, count)]

    async def session(name: str, ids: list[int]) -> None:
        start, known = 0, None
        for turn in range(3):
            sampling = Sampling(max_new_tokens=12, seed=turn, record=((routed_experts.NAME, start),))
            drawn = await collect(sglang.generate(f"{name}/{turn}", ids, sampling))
            ids = [*ids, *drawn.token_ids]
            known = agree(moe_model, ids, drawn.attachments[routed_experts.NAME], known)
            start = len(known)
            assert start == len(ids) - 1
            ids = [*ids, *said(5)]

    assert sglang.capabilities.attachments == {routed_experts.NAME, support.NAME}
    shared = said(40)
    await asyncio.gather(*[session(f"s{i}", [*shared, *said(1 + 5 * i)]) for i in range(4)])


async def test_a_turn_that_continues_beyond_a_stop_or_a_cut_records_each_token_once(
    sglang: SGLangEngine, moe_model: Any
) -> None:
    end = moe_model.config.eos_token_id
    sampling = Sampling(
        max_new_tokens=4, stop_token_ids=(7,), logit_bias=((end, 100.0),), record=((routed_experts.NAME, 1),)
    )
    turn = await collect(sglang.generate("stop/0", [5, 6, 8], sampling))
    assert turn.token_ids == (end,) * 4
    assert len(agree(moe_model, [5, 6, 8, *turn.token_ids], turn.attachments[routed_experts.NAME])) == 3 + 4 - 1 - 1
    ids, last, cuts = [9, 10, 11, 12], None, 0
    sampling = Sampling(max_new_tokens=160, record=((routed_experts.NAME, 2),))
    stream = generate(sglang, "cut/0", ids, sampling, time.monotonic() + 300)
    async for item in stream:
        if isinstance(item, Turn):
            last = item
        elif not cuts:
            cuts += 1
            await sglang.pause(PauseMode.ABORT)
            await sglang.resume()
    assert last is not None
    assert last.finish_reason is FinishReason.LENGTH
    assert len(agree(moe_model, [*ids, *last.token_ids], last.attachments[routed_experts.NAME])) == 4 + 160 - 1 - 2


async def test_a_mixture_keeps_the_contract_on_routed_experts(sglang: SGLangEngine) -> None:
    await CHECKS["routed_experts_are_those_requested"](EngineSubject(sglang))


async def test_a_server_that_does_not_record_is_refused(moe: Path, moe_url: str) -> None:
    engine = servers.attached("sglang", moe, moe_url, routed_experts=True)
    try:
        info = {**await engine.client.server_info(), "enable_return_routed_experts": False}

        async def forgetful() -> dict[str, Any]:
            return info

        engine.client.server_info = forgetful
        with pytest.raises(ConfigError, match="runs without --enable-return-routed-experts"):
            await engine.start()
    finally:
        await engine.close()


def test_a_server_of_ours_on_a_cpu_is_refused_with_the_reason(moe: Path, folder: Path) -> None:
    with pytest.raises(ConfigError, match="sglang can't record them on a CPU"):
        SGLangEngine(moe, ServerConfig(name="sglang", device="cpu", routed_experts=True))
    with pytest.raises(ConfigError, match="has no experts"):
        SGLangEngine(folder, ServerConfig(name="sglang", device="cpu", routed_experts=True))
