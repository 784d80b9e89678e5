"""What a server is started with, and whether it may be: settings in, command line or a clear refusal out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import RunConfig
from agentrl.errors import ConfigError, EngineError, MissingExtra
from agentrl.overrides import merge_settings, validate
from agentrl.rollout.engines.folder import ModelFacts, check_tensors, tensors
from agentrl.rollout.engines.servers import options
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.rollout.engines.servers.sglang import SGLangEngine
from agentrl.rollout.engines.servers.vllm import VLLMEngine

OTHER = {"a": 1}


def test_options_become_a_command_line() -> None:
    given: dict[str, Any] = {"tp_size": 2, "flag": True, "off": False, "none": None, "sizes": [1, 2], "json": OTHER}
    assert options.command_line(given) == ["--tp-size", "2", "--flag", "--sizes", "1", "2", "--json", '{"a": 1}']


def test_words_on_the_command_line_reach_the_server_typed() -> None:
    words = ["env=calculator", "engine=sglang", "engine.server.mem_fraction_static=0.8", "engine.server.flag=true"]
    config = validate(merge_settings([*words, "engine.server.name=x", "engine.server.sizes=[1, 2]"]), RunConfig).engine
    assert config.name == "sglang"
    assert config.server == {"mem_fraction_static": 0.8, "flag": True, "name": "x", "sizes": [1, 2]}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["port", "model-path", "context_length", "enable-deterministic-inference"])
def test_an_option_that_has_a_setting_of_its_own_is_refused_and_named(name: str, folder: Path, fake: Path) -> None:
    config = ServerConfig(name="sglang", device="cpu", python=str(fake), server={name: 1})
    with pytest.raises(ConfigError, match=f"engine.server.{name}=1: this is set by"):
        SGLangEngine(folder, config)


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """An interpreter that claims to have a supported version of everything, and dies when it is to serve."""
    path = tmp_path / "python"
    path.write_text(
        f'#!/bin/sh\ncase "$*" in *metadata*sglang*) echo 0.5.23.post1;; *metadata*vllm*) echo 0.32.0+cpu;; '
        f'*) echo "arguments: $*"; echo "error: unrecognized arguments" >&2; exit 2;; esac\n'
        f"# beside {sys.executable}\n"
    )
    path.chmod(0o755)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SGLangEngine, VLLMEngine])
async def test_a_server_that_refuses_its_options_shows_its_own_message(kind: Any, folder: Path, fake: Path) -> None:
    engine = kind(folder, ServerConfig(device="cpu", python=str(fake), server={"no_such_option": 3}))
    with pytest.raises(EngineError, match="unrecognized arguments") as caught:
        await engine.start()
    assert "--no-such-option 3" in str(caught.value)
    assert not (await engine.health()).ok
    await engine.close()


@pytest.mark.slow
async def test_users_options_go_above_ours(folder: Path, fake: Path) -> None:
    server: dict[str, Any] = {"max-total-tokens": 99, "disable_cuda_graph": False}
    engine = SGLangEngine(folder, ServerConfig(device="cpu", python=str(fake), server=server))
    assert engine.launched["max_total_tokens"] == 99
    assert "--disable-cuda-graph" not in options.command_line(engine.launched)
    await engine.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        ("cpu", {"device": "cpu", "attention_backend": "torch_native", "enable_deterministic_inference": None}),
        ("cuda", {"device": "cuda", "attention_backend": None, "enable_deterministic_inference": True}),
        ("rocm", {"device": "cuda", "attention_backend": "triton", "enable_deterministic_inference": True}),
    ],
)
async def test_flags_go_by_the_device(
    platform: str, expected: dict[str, Any], folder: Path, fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "platform", lambda _: platform)
    engine = SGLangEngine(folder, ServerConfig(python=str(fake)))
    assert {name: engine.launched.get(name) for name in expected} == expected
    assert engine.capabilities.deterministic == (platform != "cpu")
    await engine.close()


@pytest.mark.slow
def test_an_engine_that_is_not_installed_says_where_and_what_is_wanted(folder: Path) -> None:
    with pytest.raises(MissingExtra, match=r"nothing is not installed for .*nothing>=1.2,<2"):
        options.check_version(sys.executable, ("nothing", "nothing-cpu"), (1, 2), (2,))


@pytest.mark.parametrize("version", ["0.5.22", "0.6.0", "1.0", "unknown"])
def test_a_version_outside_the_range_is_refused(version: str) -> None:
    with pytest.raises(ConfigError, match=r"outside the supported range sglang>=0.5.23,<0.6"):
        options.check_range("sglang", version, (0, 5, 23), (0, 6))


@pytest.mark.parametrize("version", ["0.5.23", "0.5.23.post1", "0.5.24+cu130", "0.5.30rc1"])
def test_a_version_inside_the_range_is_taken(version: str) -> None:
    options.check_range("sglang", version, (0, 5, 23), (0, 6))


def test_an_interpreter_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine.python='/no/python'"):
        SGLangEngine(folder, ServerConfig(python="/no/python", device="cpu"))


async def test_a_url_that_nobody_answers_is_named(folder: Path) -> None:
    engine = SGLangEngine(folder, ServerConfig(url="http://127.0.0.1:9", device="cpu"))
    engine.attach_seconds = 0.1
    with pytest.raises(EngineError, match=r"engine.url='http://127.0.0.1:9'"):
        await engine.start()
    await engine.close()


def test_a_folder_gives_its_models_limits_and_tensors(folder: Path, model: Any) -> None:
    facts, config = ModelFacts.read(folder), model.config
    assert (facts.vocab_size, facts.context) == (config.vocab_size, config.max_position_embeddings)
    heads = config.num_key_value_heads * config.hidden_size // config.num_attention_heads
    assert facts.kv_bytes("float32") == 2 * config.num_hidden_layers * heads * 4
    named = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert tensors(folder) == named
    check_tensors(named | {"lm_head.weight": (1, 1)}, named, tied=True)
    with pytest.raises(EngineError, match="lm_head"):
        check_tensors(named | {"lm_head.weight": (1, 1)}, named, tied=False)


def test_a_folder_without_a_model_is_an_engine_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="can't load"):
        ModelFacts.read(tmp_path)
    with pytest.raises(EngineError, match="safetensors"):
        tensors(tmp_path)
