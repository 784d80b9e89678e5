"""The contract, kept by vLLM itself, on a CPU; and what is ours about speaking to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.attachments import support
from agentrl.models.tokenizers import load_tokenizer
from agentrl.rollout.engines.contract import CHECKS, EngineSubject
from agentrl.rollout.engines.servers.server_engine import ServerInfo
from agentrl.rollout.engines.servers.vllm import VLLMEngine
from agentrl.rollout.engines.servers.vllm_options import LISTED
from agentrl.rollout.weights.receiver import LoadCommit
from agentrl.rollout.weights.snapshot import write_snapshot
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from benchmarks.fidelity import agreement, random_sessions
from tests.rollout.engines import servers
from tests.rollout.engines.conftest import reference
from tests.rollout.engines.taught import check_teacher
from tests.rollout.engines.test_call_grammars import check_servers_calls
from tests.rollout.engines.verified import check_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    yield from servers.served("vllm", folder)


@pytest.fixture
async def vllm(folder: Path, url: str) -> AsyncIterator[VLLMEngine]:
    engine = servers.attached("vllm", folder, url)
    await engine.start()
    yield engine
    await engine.close()


@pytest.mark.parametrize("name", CHECKS)
async def test_vllm_keeps_the_contract(name: str, vllm: VLLMEngine, folder: Path, model: Any) -> None:
    subject = EngineSubject(
        vllm, load_tokenizer(folder), reference(model), lambda: model.state_dict().items(), samples=400, requests=8
    )
    await CHECKS[name](subject)


async def test_narrowed_turns_bring_the_set_that_the_server_drew_from(vllm: VLLMEngine, folder: Path) -> None:
    """What has a log-probability among the most probable tokens; the trainer computes the same distribution."""
    vllm.info = ServerInfo(None, "0", listed=LISTED)  # a server of ours, which this one is
    narrowings = (
        {"top_p": 0.9},
        {"top_k": 8, "logit_bias": ((9, -100.0),)},
        {"top_p": 0.8, "min_p": 0.02, "repetition_penalty": 1.5},
        {"presence_penalty": 1.5, "frequency_penalty": 0.7, "repetition_penalty": 0.8},
        {"frequency_penalty": 0.7, "logit_bias": ((9, 5.0),)},
        {"json_schema": json.dumps({"type": "object", "properties": {"name": {"type": "string"}}})},
    )
    sessions = await random_sessions(vllm, 6, turns=2, narrowings=narrowings)
    drawn = [node for session in sessions for node in session.nodes if node.sampled]
    assert all(all(node.trainable) for node in drawn)
    rules = [support.unpack(node.attachments[support.NAME]).rule.partition("+")[::2] for node in drawn]
    assert {rule for rule, _ in rules} == {support.VLLM}
    assert [bool(library) for _, library in rules] == [node.sampling.grammar for node in drawn], "our matcher's masks"
    assert agreement(TorchTrainer(folder), sessions).max <= 1e-5
    await check_servers_calls(vllm, folder)


def test_a_run_on_vllm_is_verified_by_vllms_own_checksums_and_a_swapped_token_in_it_is_found(
    url: str, folder: Path, tmp_path: Path
) -> None:
    check_run("vllm", url, folder, tmp_path)


async def test_a_published_folder_is_loaded_where_it_lies(
    vllm: VLLMEngine, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was once read and written a second time, amid the pause."""
    monkeypatch.setattr("agentrl.rollout.engines.servers.remote.write_model", None)
    moved = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter += 0.01
    weights = [(name, tensor) for name, tensor in moved.state_dict().items() if name != "lm_head.weight"]
    written = write_snapshot(weights, tmp_path / "snapshot", folder, 1 << 16)
    assert len(list(written.glob("*.safetensors"))) > 1
    await vllm.pause()
    await vllm.receiver.load_folder(written, LoadCommit(89, flush=True))
    await vllm.resume()
    ids = list(range(5, 30))
    scored, own = await vllm.score(ids, 1.0), reference(moved)(ids, 1.0)
    assert max(abs(a - b) for a, b in zip(scored, own, strict=True)) < 1e-4
    assert (await vllm.client.weight_version(), vllm.version()) == ("89", 89)


async def test_it_is_a_teacher_by_its_url(vllm: VLLMEngine, url: str, folder: Path, model: Any, tmp_path: Path) -> None:
    await vllm.pause()
    await vllm.publish(model.state_dict().items(), 90)
    await vllm.resume()
    await check_teacher(f"{url}/v1", folder, model, tmp_path, "prompt_logprobs")
