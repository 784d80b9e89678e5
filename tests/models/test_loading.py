from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig
from typer.testing import CliRunner

from agentrl import cli
from agentrl.common import transformers_index
from agentrl.config import AlgoConfig, EngineConfig
from agentrl.errors import ConfigError, InvalidInput, InvalidWeights
from agentrl.models.loading import load_causal_lm, new_causal_lm
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.train.trainers import make_trainer
from agentrl.train.trainers.loaded import Loaded
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from tests.rollout.engines.conftest import folder

__all__ = ["folder"]

THREADS = 6


def test_transformers_list_of_models_is_derived_as_it_would_make_it() -> None:
    from transformers.utils import import_utils

    file = Path(import_utils.__file__).parents[1] / "models" / "__init__.py"
    made = import_utils.define_import_structure.__wrapped__(str(file))  # anew, not from its cache
    assert made
    assert transformers_index.derive_index() == made


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda path, prefix: {(): ["models.llama"]}, "has another form"),
        (lambda path, prefix: {(): {"models.ll.ama": {"A"}}}, r"without a folder: \['ll'\]"),
        (lambda path, prefix: {(): {"llama.modeling": {"A"}}}, "names no model"),
        (lambda path: {}, "unexpected keyword argument"),
    ],
)
def test_a_transformers_that_lists_its_models_otherwise_is_imported_as_it_is(
    other: Any, words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers.utils import import_utils

    monkeypatch.setattr(import_utils, "define_import_structure", other)
    monkeypatch.delitem(sys.modules, transformers_index.PACKAGE)
    transformers_index.import_models()
    assert import_utils.define_import_structure is other
    assert transformers_index.PACKAGE not in sys.modules
    assert re.search(f"and so twice, which takes some 0.3 s at each start: .*{words}", caplog.text)


@pytest.mark.slow
def test_a_transformers_that_compares_tensors_otherwise_is_refused_by_its_version(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5.0's method takes the names apart, and the error was a TypeError of a function of ours."""
    from transformers import PreTrainedModel

    def older(model: Any, missing: set[str], unexpected: set[str]) -> tuple[set[str], set[str]]:
        return missing, unexpected

    monkeypatch.setattr(PreTrainedModel, "_adjust_missing_and_unexpected_keys", older)
    words = r"transformers 5[.\d]+ loads models otherwise than 5.1 .*pip install 'agentrl-platform\[train\]'"
    with pytest.raises(ConfigError, match=words):
        load_causal_lm(folder, torch.float32, "eager")


@pytest.mark.slow
def test_models_loaded_in_many_threads_are_whole_and_those_after_them_too(folder: Path) -> None:
    """transformers' own loading isn't safe in threads: tied weights were left without data, from then on."""
    from transformers import PreTrainedModel

    tie, normal = PreTrainedModel.tie_weights, torch.nn.init.normal_
    together = threading.Barrier(THREADS)

    def load(_: int) -> bool:
        together.wait(60)
        models = [load_causal_lm(folder, torch.float32, "eager") for _ in range(4)]
        return all(m.get_output_embeddings().weight is m.get_input_embeddings().weight for m in models)

    with ThreadPoolExecutor(THREADS) as pool:
        assert all(pool.map(load, range(THREADS)))
    assert (PreTrainedModel.tie_weights, torch.nn.init.normal_) == (tie, normal)
    fresh = new_causal_lm(load_causal_lm(folder, torch.float32, "eager").config, torch.float32, "eager")
    assert all(p.isfinite().all() and p.abs().sum() > 0 for p in fresh.parameters())


BIASES = r"without a place in the model: model\.layers\.0\.self_attn\.k_proj\.bias"


def qwen(path: Path, *, binary: bool = False, **fields: object) -> Path:
    """The folder of a small Qwen2 with some fields of its configuration changed."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64}
    torch.manual_seed(0)
    model = new_causal_lm(
        AutoConfig.for_model("qwen2", **sizes, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True),
        torch.float32,
        "eager",
    )
    model.save_pretrained(path)
    if binary:
        (path / "model.safetensors").unlink()
        torch.save(model.state_dict(), path / "pytorch_model.bin")
    settings = {**json.loads((path / "config.json").read_text()), **fields}
    (path / "config.json").write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))
    return path


def rewritten(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    """The same folder with tensors added or taken away."""
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def load(path: Path) -> Any:
    return load_causal_lm(path, torch.float32, "eager")


def test_a_head_of_its_own_is_refused_where_the_configuration_ties_it(tmp_path: Path) -> None:
    """transformers did not tie it, and servers did: a trainer and its engines computed with different heads."""
    load(rewritten(qwen(tmp_path / "same"), lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 0})))
    other = rewritten(qwen(tmp_path / "own"), lambda t: t.update({"lm_head.weight": torch.ones(64, 32)}))
    with pytest.raises(
        InvalidWeights, match=r"other than the tensor that tie_word_embeddings ties it to: lm_head\.weight"
    ):
        load(other)


@pytest.mark.parametrize("binary", [False, True], ids=["safetensors", "bin"])
def test_weights_of_another_kind_of_model_are_refused_by_their_names(tmp_path: Path, binary: bool) -> None:
    """Qwen2's weights with a configuration of Llama lost their biases, and trained to the end."""
    load(qwen(tmp_path / "whole", binary=binary))
    other = qwen(tmp_path / "other", binary=binary, model_type="llama", architectures=["LlamaForCausalLM"])
    with pytest.raises(InvalidWeights, match=BIASES + ".* and 2 more"):
        load(other)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"num_hidden_layers": 3, "layer_types": None}, r"missing: model\.layers\.2\.input_layernorm\.weight"),
        ({"num_hidden_layers": 1, "layer_types": None}, r"without a place in the model: model\.layers\.1\.input_lay"),
        ({"intermediate_size": 64}, r"of another shape: model\.layers\.0\.mlp\.down_proj\.weight \(32, 48\), not \(32"),
    ],
    ids=["a layer too many", "a layer too few", "wider"],
)
def test_a_configuration_that_does_not_fit_the_files_is_refused_by_tensors(
    tmp_path: Path, fields: dict[str, object], says: str
) -> None:
    with pytest.raises(InvalidWeights, match=says):
        load(qwen(tmp_path, **fields))


def test_no_trainer_or_engine_takes_weights_of_another_model(tmp_path: Path) -> None:
    path = qwen(tmp_path, model_type="llama", architectures=["LlamaForCausalLM"])
    with pytest.raises(InvalidWeights, match=BIASES):
        make_trainer(path, TorchConfig(device="cpu"), AlgoConfig())
    with pytest.raises(InvalidWeights, match=BIASES):
        LocalEngine(path, EngineConfig(device="cpu"))


@pytest.mark.usefixtures("own_cache")
@pytest.mark.slow
def test_models_check_finds_weights_of_another_model(tmp_path: Path) -> None:
    """It printed ✓, since what it compared with had lost the same weights."""
    path = qwen(tmp_path / "model", model_type="llama", architectures=["LlamaForCausalLM"])
    printed = CliRunner().invoke(cli.app, ["models", "check", str(path), "--engine", "local"], env={"COLUMNS": "400"})
    assert "✗ engine=local: model=" in printed.stdout
    assert "self_attn.k_proj.bias" in printed.stdout
    assert printed.exit_code == 1


def test_layers_that_predict_several_tokens_and_old_frequencies_may_be_in_the_files(tmp_path: Path) -> None:
    beside = ("mtp.layers.0.mlp.weight", "model.layers.0.self_attn.rotary_emb.inv_freq")
    load(rewritten(qwen(tmp_path), lambda tensors: tensors.update({name: torch.ones(2) for name in beside})))


def test_a_layer_behind_the_last_is_dropped_only_where_the_configuration_says_so(tmp_path: Path) -> None:
    more = {"model.layers.2.mlp.gate_proj.weight": torch.ones(48, 32)}
    load(rewritten(qwen(tmp_path / "said", num_nextn_predict_layers=1), lambda tensors: tensors.update(more)))
    with pytest.raises(InvalidWeights, match=r"model\.layers\.2\.mlp\.gate_proj\.weight"):
        load(rewritten(qwen(tmp_path / "unsaid"), lambda tensors: tensors.update(more)))


def test_what_a_class_of_transformers_drops_in_silence_is_refused_all_the_same(tmp_path: Path) -> None:
    """GLM 4.5's class drops layers 46 and 92 of any model, whichever number of layers its configuration has."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "head_dim": 8, "vocab_size": 64}
    counts = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "n_routed_experts": 4}
    config = AutoConfig.for_model("glm4_moe", **sizes, **counts, num_experts_per_tok=2)
    new_causal_lm(config, torch.float32, "eager").save_pretrained(tmp_path)
    load(tmp_path)
    with pytest.raises(InvalidWeights, match=r"model\.layers\.46\.mlp\.weight"):
        load(rewritten(tmp_path, lambda tensors: tensors.update({"model.layers.46.mlp.weight": torch.ones(2)})))


def test_an_adapter_is_not_loaded_as_the_model_that_it_names(tmp_path: Path) -> None:
    qwen(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    with pytest.raises(InvalidInput, match=r"holds an adapter of 'org/base' .*merge it"):
        load(tmp_path)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.uint8])
def test_weights_that_are_packed_are_refused_though_no_configuration_says_so(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    """int8 weights were widened without their scales, and a run trained what came of it to the end."""

    def pack(tensors: dict[str, torch.Tensor]) -> None:
        name = "model.layers.0.mlp.down_proj.weight"
        tensors[name] = tensors[name].to(dtype)

    with pytest.raises(InvalidInput, match=r"is quantised \(model\.layers\.0\.mlp\.down_proj\.weight has the type"):
        load(rewritten(qwen(tmp_path), pack))


def test_weights_that_are_no_numbers_are_refused_as_such() -> None:
    assert "no numbers (NaN)" in str(Loaded(float("nan")))
    assert not Loaded(float("nan")).passed


CUSTOM = {"model_type": "frob", "auto_map": {"AutoConfig": "configuration_frob.FrobConfig"}}
UNLOADABLE: dict[str, tuple[dict[str, object], str]] = {
    "code of its own": (CUSTOM, r"code of its own.*only with model\.trust_remote_code=true"),
    "an unknown type": ({"model_type": "frob"}, r"knows no model_type='frob'"),
    "no type": ({"model_type": None}, "config.json has no model_type"),
    "quantised": ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, r"quantised .*'gptq'.*bfloat16"),
    "quantised by a word": ({"quantization_config": "gptq"}, "quantization_config='gptq', not an object"),
    "of images": ({"model_type": "qwen2_5_vl"}, "a model of images or sound"),
    "of tiles": (
        {"model_type": "llava_onevision"},
        "can't be trained: its processor cuts an image into tiles only where",
    ),
    "an encoder with a decoder": ({"model_type": "t5"}, "an encoder with a decoder, and no causal language model"),
    "of speech": ({"model_type": "whisper"}, "an encoder with a decoder"),
    "no causal language model": ({"model_type": "vit"}, "no causal language model"),
    "a field of another type": ({"hidden_size": "x"}, "'hidden_size' expected int"),
    "an unknown activation": ({"hidden_act": "frob"}, r"knows no hidden_act='frob' \(config.json\)"),
    "unknown angles": ({"rope_parameters": {"rope_type": "frob"}}, "knows no rope_parameters.rope_type='frob'"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", UNLOADABLE)
def test_a_folder_that_can_not_be_loaded_says_why_in_one_sentence(tmp_path: Path, case: str) -> None:
    fields, says = UNLOADABLE[case]
    path = qwen(tmp_path, **fields)
    (tmp_path / "configuration_frob.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(InvalidInput, match=says) as refused:
        load(path)
    assert "\n" not in str(refused.value)
