"""Folders that bring Python code for their model: refused in a sentence, or run where the user says so."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from transformers import dynamic_module_utils
from typer.testing import CliRunner

from agentrl import cli
from agentrl.cluster.base import Role
from agentrl.common import custom_code
from agentrl.config import AlgoConfig, EngineConfig, ModelConfig
from agentrl.errors import ConfigError, InvalidInput
from agentrl.models import tiny
from agentrl.models.loading import load_causal_lm, loadable_config, new_causal_lm, read_config
from agentrl.models.registry import model_folder
from agentrl.rollout.engines.folder import ModelFacts
from agentrl.rollout.engines.local.process_engine import ProcessEngine
from agentrl.rollout.engines.servers import options, sglang_options, vllm_options
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.train.trainers import make_trainer, proof
from agentrl.train.trainers.torch_trainer.settings import TorchConfig

CONFIGURATION = """
from transformers import LlamaConfig


class OddConfig(LlamaConfig):
    model_type = "odd_llama"
"""
MODEL = """
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP

from .configuration_odd import OddConfig


class OddMLP(LlamaMLP):
    def forward(self, x):
        return -super().forward(x)


class OddForCausalLM(LlamaForCausalLM):
    config_class = OddConfig

    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp = OddMLP(config)
        self.post_init()
"""
SCALED = """

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * 2
        return output
"""
AUTO_MAP = {"AutoConfig": "configuration_odd.OddConfig", "AutoModelForCausalLM": "modeling_odd.OddForCausalLM"}
TEXTS = [f"<|im_start|>user\n{n}<|im_end|>\n<|im_start|>assistant\n{n + n}<|im_end|>\n" for n in range(60)]


@pytest.fixture(scope="module", autouse=True)
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where transformers copies code to before it imports it; not the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        yield


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Has this process be one that has allowed nothing yet."""
    return lambda: monkeypatch.setattr(custom_code, "_allowed", set())


@pytest.fixture(autouse=True)
def nothing_allowed(own_cache: None, forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has allowed nothing yet, and in which nobody answers questions."""

    def ask(*_: object) -> str:
        raise AssertionError("somebody was asked")

    forget()
    monkeypatch.setattr(builtins, "input", ask)


def odd(path: Path, model: str = MODEL, **fields: Any) -> Path:
    """A folder whose model is Llama's with another MLP, by code of its own."""
    tiny.build(path, TEXTS, shape=tiny.TinyShape(vocab=288, context=512))
    (path / "configuration_odd.py").write_text(CONFIGURATION)
    (path / "modeling_odd.py").write_text(model)
    changed = {"model_type": "odd_llama", "architectures": ["OddForCausalLM"], "auto_map": AUTO_MAP, **fields}
    settings = json.loads((path / "config.json").read_text()) | changed
    (path / "config.json").write_text(json.dumps(settings))
    return path


def load(path: Path) -> Any:
    return load_causal_lm(path, torch.float32, "eager")


def test_a_model_with_code_is_refused_by_the_setting_that_runs_it_and_nothing_runs(tmp_path: Path) -> None:
    path = odd(tmp_path / "model", "raise SystemExit('it ran')")
    says = r"needs code of its own \(auto_map: configuration_odd.py, modeling_odd.py\).*model\.trust_remote_code=true"
    for use in (load, read_config, loadable_config):
        with pytest.raises(InvalidInput, match=says) as refused:
            use(path)
        assert "\n" not in str(refused.value)
    assert "trust_remote_code" in proof.prove(path).fault


@pytest.mark.slow
def test_allowed_code_computes_in_the_trainer_and_the_engine_what_it_computes_in_transformers(tmp_path: Path) -> None:
    path = odd(tmp_path / "model")
    assert model_folder(ModelConfig(name=str(path), trust_remote_code=True)) == path
    model = load(path)
    assert type(model).__name__ == "OddForCausalLM"
    assert proof.prove(path).passed
    assert proof.prove(path, subject="local").passed
    assert type(new_causal_lm(model.config, torch.float32, "eager")) is type(model)


@pytest.mark.slow
def test_code_whose_results_a_forest_does_not_have_is_refused_by_numbers(tmp_path: Path) -> None:
    """The trainer takes the head's rows itself, and so misses what a model's own forward does to logits."""
    path = odd(tmp_path / "model", MODEL + SCALED)
    custom_code.allow(path)
    found = proof.prove(path)
    assert not found.passed
    assert found.logp > found.logp_bound


@pytest.mark.slow
def test_an_export_is_a_model_with_its_code_which_is_allowed_with_it(tmp_path: Path) -> None:
    path = odd(tmp_path / "model")
    custom_code.allow(path)
    trainer = make_trainer(path, TorchConfig(device="cpu"), AlgoConfig())
    trainer.export(tmp_path / "out")
    trainer.close()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["auto_map"] == AUTO_MAP
    assert custom_code.digest(tmp_path / "out") == custom_code.digest(path)
    ours, theirs = load(tmp_path / "out").state_dict(), load(path).state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_code_that_changes_or_is_elsewhere_has_no_permission(tmp_path: Path) -> None:
    path = odd(tmp_path / "model")
    custom_code.allow(path)
    (path / "helper.py").write_text("1")
    with pytest.raises(InvalidInput, match=r"helper\.py.*trust_remote_code=true"):
        load(path)
    custom_code.allow(path)
    load(path)
    other = odd(tmp_path / "other", auto_map={"AutoConfig": "org/odd--configuration_odd.OddConfig"})
    custom_code.allow(other)
    with pytest.raises(InvalidInput, match=r"in the repository 'org/odd', which is not fetched"):
        load(other)


@pytest.mark.parametrize(
    ("model", "auto_map", "says"),
    [
        (MODEL, {"AutoConfig": AUTO_MAP["AutoConfig"]}, "names no AutoModelForCausalLM, but AutoConfig"),
        ("import frobnicate", AUTO_MAP, "frobnicate"),
        (MODEL, {**AUTO_MAP, "AutoConfig": "configuration_odd.Missing"}, r"its code \(auto_map.*Missing"),
    ],
)
def test_code_that_does_not_give_a_model_says_so_in_a_sentence(
    tmp_path: Path, model: str, auto_map: dict[str, str], says: str
) -> None:
    path = odd(tmp_path / "model", model, auto_map=auto_map)
    custom_code.allow(path)
    with pytest.raises(InvalidInput, match=says) as refused:
        load(path)
    assert "\n" not in str(refused.value)


def test_a_type_that_transformers_has_runs_its_own_code_unless_the_folders_is_allowed(tmp_path: Path) -> None:
    model = MODEL.replace(".configuration_odd", "transformers").replace("OddConfig", "LlamaConfig")
    auto_map = {"AutoModelForCausalLM": AUTO_MAP["AutoModelForCausalLM"]}
    path = odd(tmp_path / "model", model, model_type="llama", auto_map=auto_map)
    assert type(load(path)).__name__ == "LlamaForCausalLM"
    custom_code.allow(path)
    assert type(load(path)).__name__ == "OddForCausalLM"


def test_workers_are_allowed_what_their_starter_is(tmp_path: Path, forget: Callable[[], None]) -> None:
    path = odd(tmp_path / "model")
    custom_code.allow(path)
    sent: Any = Role("engine", "agentrl.rollout.engines.local.engine_role:EngineRole").pickled().arguments
    forget()
    assert not custom_code.is_allowed(path)
    sent.loaded()
    assert custom_code.is_allowed(path)


@pytest.mark.slow
def test_an_engine_in_a_process_of_its_own_loads_allowed_code(tmp_path: Path) -> None:
    path = odd(tmp_path / "model")
    custom_code.allow(path)
    engine = ProcessEngine(path, EngineConfig(device="cpu", threads=1))
    try:
        assert engine.capabilities.max_context == 512
    finally:
        engine.worker.shutdown()


@pytest.mark.parametrize("server", [sglang_options, vllm_options])
def test_servers_are_told_to_run_code_only_where_it_is_allowed(tmp_path: Path, server: Any) -> None:
    path = odd(tmp_path / "model")
    facts, config = ModelFacts.read(path), ServerConfig(name="server")
    flag = "--trust-remote-code"
    assert flag not in options.command_line(server.launch_options(config, facts, "cpu"))
    custom_code.allow(path)
    assert flag in options.command_line(server.launch_options(config, facts, "cpu"))
    with pytest.raises(ConfigError, match=r"this is set by model\.trust_remote_code"):
        options.merge({}, {"trust_remote_code": True}, server.OWNED)


@pytest.mark.slow
def test_the_dry_run_says_which_code_would_run(tmp_path: Path) -> None:
    path = odd(tmp_path / "model", model_type="llama")
    words = ["train", "env=calculator", f"model={path}", "dry_run=true", "model.trust_remote_code=true"]
    printed = CliRunner().invoke(cli.app, words, env={"COLUMNS": "400"}).output
    assert "Python code of the model's folder runs (model.trust_remote_code=true): configuration_odd.py, mod" in printed


@pytest.mark.slow
def test_models_check_runs_code_only_with_its_option(tmp_path: Path) -> None:
    words = ["models", "check", str(odd(tmp_path / "model")), "--trainer", "torch"]
    refused = CliRunner().invoke(cli.app, words, env={"COLUMNS": "400"})
    assert refused.exit_code == 1
    assert "model.trust_remote_code=true" in refused.stdout
    taken = CliRunner().invoke(cli.app, [*words, "--trust-remote-code"], env={"COLUMNS": "400"})
    assert taken.exit_code == 0
    assert "✓ trainer=torch: with the folder's weights" in taken.stdout
