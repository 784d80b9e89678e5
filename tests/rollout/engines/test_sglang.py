"""The contract, kept by SGLang itself, on a CPU; and what is ours about speaking to it."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.attachments import support
from agentrl.errors import DeadlineExceeded
from agentrl.models.tokenizers import load_tokenizer
from agentrl.rollout.engines.contract import CHECKS, EngineSubject
from agentrl.rollout.engines.local.sampler import RowSampling
from agentrl.rollout.engines.servers.sglang import SGLangEngine
from agentrl.rollout.weights.transports import ipc
from agentrl.sessions.tree import trainability, tree
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import FinishReason, Node, PauseMode, Sampling, collect
from benchmarks import publication
from benchmarks.fidelity import agreement, random_sessions
from benchmarks.supports import kept_by_definition
from tests.rollout.engines import servers
from tests.rollout.engines.conftest import reference
from tests.rollout.engines.taught import check_teacher
from tests.rollout.engines.test_call_grammars import check_servers_calls
from tests.rollout.engines.verified import attached, check_run, check_stale_tensor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def url(folder: Path) -> str:
    return servers.shared("sglang", folder)


@pytest.fixture
async def sglang(folder: Path, url: str) -> AsyncIterator[SGLangEngine]:
    engine = servers.attached("sglang", folder, url)
    await engine.start()
    yield engine
    await engine.close()


@pytest.mark.parametrize("name", CHECKS)
async def test_sglang_keeps_the_contract(name: str, sglang: SGLangEngine, folder: Path, model: Any) -> None:
    subject = EngineSubject(
        sglang, load_tokenizer(folder), reference(model), lambda: model.state_dict().items(), samples=400, requests=8
    )
    await CHECKS[name](subject)


async def test_a_turn_keeps_to_its_json_schema_and_ends_with_it(sglang: SGLangEngine, folder: Path) -> None:
    schema = json.dumps({"type": "object", "properties": {"ok": {"enum": ["yes", "no"]}}, "required": ["ok"]})
    turn = await collect(sglang.generate("s/0", [5, 6, 7], Sampling(max_new_tokens=200, json_schema=schema)))
    text = load_tokenizer(folder).decode(turn.token_ids)
    if turn.finish_reason is FinishReason.STOP:  # random weights may fill the room with white space
        assert json.loads(text.partition("<|im_end|>")[0])["ok"] in ("yes", "no")
    else:
        assert text.lstrip().startswith("{")


async def test_narrowed_turns_and_those_under_a_grammar_bring_the_set_that_the_server_drew_from(
    sglang: SGLangEngine, folder: Path, model: Any
) -> None:
    """The server lists it, and our matcher tells it where a grammar alone narrows: the trainer computes the same."""
    await sglang.publish(model.state_dict().items(), sglang.version() + 1)
    narrowings = (
        {"top_p": 0.9},
        {"top_k": 8, "logit_bias": ((9, -100.0),)},
        {"top_k": 50, "top_p": 0.8, "min_p": 0.02},
        {"regex": "([a-f]{2,5} ){3,20}", "top_logprobs": 3},
        {"regex": "([a-f]{2,5} ){3,20}", "top_p": 0.9},
        {"logit_bias": ((9, 5.0),)},
    )
    sessions = await random_sessions(sglang, 6, turns=2, narrowings=narrowings)
    drawn = [node for session in sessions for node in session.nodes if node.sampled]
    assert all(all(node.trainable) for node in drawn)
    rules = [support.unpack(node.attachments[support.NAME]).rule.partition("+") for node in drawn]
    assert {rule for rule, *_ in rules} == {support.SGLANG}
    ours = [node.sampling.grammar and not node.sampling.filtered for node in drawn]
    assert [bool(library) for *_, library in rules] == ours, "its masks are our matcher's where nothing else narrows"
    assert agreement(TorchTrainer(folder), sessions).max <= 1e-5
    for session in sessions:
        for node in session.nodes:
            if node.sampled and node.sampling.top_p < 1 and not node.sampling.grammar:
                kept_is_by_definition(node, tree.path_ids(session, node.id), model)
    await check_servers_calls(sglang, folder)
    penalised = await random_sessions(sglang, 1, turns=1, narrowings=({"repetition_penalty": 1.3},))
    lost = [reason for node in penalised[0].nodes for reason in trainability.list_lost(node)]
    assert lost
    assert set(lost) == {trainability.Untrainable.UNRECORDED}, "its counts are a token behind where it overlaps steps"


def kept_is_by_definition(node: Node, path: list[int], model: Any) -> None:
    """Where a turn's first token was drawn from, by plain logits, but for rounding at the border.

    Its sampler takes each filter by itself: top-p is a part of the whole vocabulary's mass, whatever top-k leaves.
    """
    found = support.unpack(node.attachments[support.NAME])
    before = path[: len(path) - len(node.token_ids)]
    logits = model(torch.tensor([before])).logits[0, -1].detach().numpy()
    filters = ({name: getattr(node.sampling, name)} for name in ("top_k", "top_p", "min_p"))
    rows = [RowSampling(Sampling(**one), 0, 0, ()) for one in filters]
    each_RV = kept_by_definition(np.tile(logits / node.sampling.temperature, (len(rows), 1)), rows)
    wanted = set(each_RV.all(axis=0).nonzero()[0].tolist())
    read = found.ids(found.codes[0]) if found.codes[0] >= support.SETS else np.array(node.token_ids[:1])
    kept = read if read[0] >= 0 else np.setdiff1d(np.arange(found.vocabulary), -1 - read)
    assert len(set(kept.tolist()) ^ wanted) <= 1


async def test_the_models_end_token_ends_no_turn_unless_it_is_a_stop_token(sglang: SGLangEngine, model: Any) -> None:
    end, other = model.config.eos_token_id, 7
    always = ((end, 100.0),)
    for stops, reason, count in (
        ((), FinishReason.LENGTH, 4),
        ((other,), FinishReason.LENGTH, 4),
        ((end,), FinishReason.STOP, 1),
    ):
        sampling = Sampling(max_new_tokens=4, stop_token_ids=stops, logit_bias=always)
        turn = await collect(sglang.generate("s/0", [5, 6], sampling))
        assert turn.token_ids == (end,) * count
        assert turn.finish_reason is reason


async def test_the_server_itself_stops_working_on_a_request_that_was_left(sglang: SGLangEngine) -> None:
    stream = sglang.generate("left/0", [5, 6], Sampling(max_new_tokens=480))
    await anext(stream)
    assert await running(sglang) == 1
    await stream.aclose()  # type: ignore[attr-defined]
    await until(sglang, 0)


async def test_a_deadline_ends_the_request_on_the_server_too(sglang: SGLangEngine) -> None:
    with pytest.raises(DeadlineExceeded):
        await collect(sglang.generate("late/0", [5, 6], Sampling(max_new_tokens=480), time.monotonic() + 0.5))
    await until(sglang, 0)


async def running(engine: SGLangEngine) -> int:
    """Requests that the scheduler has on its hands, by its own count."""
    loads = await engine.client.get("/v1/loads")
    return sum(int(load["num_running_reqs"]) + int(load["num_waiting_reqs"]) for load in loads["loads"])


async def until(engine: SGLangEngine, count: int) -> None:
    end = time.monotonic() + 120
    while await running(engine) != count:
        assert time.monotonic() < end, "the server goes on with a request that nobody wants"
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("mode", [PauseMode.RETRACT, PauseMode.IN_PLACE])
async def test_tokens_know_which_weights_made_them_and_stale_prefixes_are_not_shared(
    mode: PauseMode, sglang: SGLangEngine, model: Any
) -> None:
    before, prompt = sglang.version(), [*range(40, 70)]
    stream = sglang.generate("s/0", prompt, Sampling(max_new_tokens=440))
    await anext(stream)
    await sglang.pause(mode)
    weights = {name: tensor + 0.02 for name, tensor in model.state_dict().items()}
    try:
        await sglang.publish(weights.items(), before + 1)
        await sglang.resume()
        turn = await collect(stream)
        assert [span.version for span in turn.versions] == [before, before + 1]
        again = await collect(sglang.generate("t/0", prompt, Sampling(max_new_tokens=1)))
        assert again.cached_tokens == 0
        cut = turn.versions[-1].start
        scored = (await sglang.score([*prompt, *turn.token_ids]))[len(prompt) :]
        if mode is PauseMode.RETRACT:  # the caches were computed anew, so the new tokens are the new policy's own
            assert max(abs(a - b) for a, b in zip(turn.logprobs[cut:], scored[cut:], strict=True)) < 1e-4
        assert max(abs(a - b) for a, b in zip(turn.logprobs[:cut], scored[:cut], strict=True)) > 1e-3
    finally:
        await sglang.publish(model.state_dict().items(), before + 2)


def test_a_run_on_sglang_is_verified_by_sglangs_own_checksums_and_a_swapped_token_in_it_is_found(
    url: str, folder: Path, tmp_path: Path
) -> None:
    check_run("sglang", url, folder, tmp_path)


async def test_every_transport_leaves_the_same_weights_in_it_and_the_benchmark_ends_where_one_does_not(
    sglang: SGLangEngine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = argparse.Namespace(dtype="float32", bucket_mb=1, rounds=1)
    ratios = await publication.measure(folder, sglang, args)
    assert {name.partition(":")[0] for name in ratios} >= {"disk", "delta", "distributed", "ipc"}
    assert ratios["delta: times fewer bytes (aim: at least 10)"][0] > 10
    one_less = ipc.buckets
    monkeypatch.setattr(ipc, "buckets", lambda weights, limit: one_less(list(weights)[1:], limit))
    with pytest.raises(SystemExit, match="left different weights"):
        await publication.measure(folder, sglang, args)


def test_a_publication_to_sglang_with_a_stale_tensor_is_found_by_a_server_that_loaded_the_weights(
    url: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_stale_tensor(attached("sglang", url), folder, tmp_path, monkeypatch)


async def test_it_is_a_teacher_by_its_url(
    sglang: SGLangEngine, url: str, folder: Path, model: Any, tmp_path: Path
) -> None:
    await sglang.pause()
    await sglang.publish(model.state_dict().items(), 90)
    await sglang.resume()
    await check_teacher(f"{url}/v1", folder, model, tmp_path, "generate")
