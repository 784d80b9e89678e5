"""The compiled kernel of the local engine: what it computes, and that a token's bits are its own."""

from __future__ import annotations

import logging
import platform
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch

from agentrl.common.native import list_features
from agentrl.config import EngineConfig
from agentrl.errors import ConfigError
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.rollout.engines.local.kernel import suits
from agentrl.rollout.engines.local.kernel_build import BUILDS, compile_kernel
from agentrl.rollout.engines.local.parts import Shared
from agentrl.rollout.engines.local.plugin import ENGINE, LocalConfig
from agentrl.rollout.engines.local.runner import ModelRunner, RowSegment
from agentrl.train.record.data_identity import STARTS
from agentrl.train.record.recording import require_kernel

WIDTHS = {"vocab_size": 77, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {"tie_word_embeddings": True},
    "Mistral": {"sliding_window": None},
    "Qwen2": {"num_attention_heads": 3, "num_key_value_heads": 1},
    "Qwen3": {"head_dim": 32},
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 500.0}


def save_model(family: str, folder: Path, **changes: Any) -> Path:
    """A random model of a family, biases and norms too, saved."""
    import transformers

    config = getattr(transformers, f"{family}Config")(**WIDTHS, **{**HEADS, **FAMILIES[family], **changes})
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return folder


RUNNABLE = [build for build, used in BUILDS.items() if list_features().issuperset(used)]


def runner(folder: Path, kernel: str = "auto") -> ModelRunner:
    return ModelRunner(folder, "cpu", "float32", 12, 1 << 26, kernel=kernel)


def path_logits(runner: ModelRunner, ids: Sequence[int], pieces: Sequence[int], row: int = 0) -> torch.Tensor:
    """The logits at all tokens: the first ones in segments of these sizes, the rest token by token."""
    found, start = list[torch.Tensor](), 0
    for size in pieces:
        piece = RowSegment(row, start, list(ids[start : start + size]))
        found.append(runner.step(0, [], [piece], 64, range(size)))
        start += size
    found += [runner.step(row + 1, [(row, at, ids[at])], [], 16, [row]) for at in range(start, len(ids))]
    return torch.cat(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "changes"),
    [*((family, {}) for family in FAMILIES), ("Llama", {"rope_parameters": YARN, "tie_word_embeddings": False})],
)
def test_the_kernel_computes_what_torch_computes(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    folder = save_model(family, tmp_path, **changes)
    compiled, reference = runner(folder), runner(folder, "torch")
    assert compiled.kernel is not None
    assert (compiled.kernel_name, reference.kernel_name) == (compiled.kernel.name, "torch")
    ids = random.Random(0).choices(range(77), k=150)
    ours, theirs = (torch.log_softmax(path_logits(one, ids, (64, 33, 1, 20)), -1) for one in (compiled, reference))
    assert (ours - theirs).abs().max() <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("build", RUNNABLE)
def test_a_tokens_bits_do_not_depend_on_its_company(build: str, tmp_path: Path) -> None:
    """In other pieces, another row and a busy batch, by several threads, its beginning read from another's row."""
    model = runner(save_model("Qwen3", tmp_path), build)
    assert model.kernel is not None
    dice = random.Random(1)
    ids = dice.choices(range(77), k=160)
    want = path_logits(model, ids, (64, 64))
    model.kernel.threads, model.kernel.least = 3, 1
    assert torch.equal(path_logits(model, ids, (64, 64)), want)
    assert torch.equal(path_logits(model, ids, (7, 50, 1, 64), row=5), want)
    others = [RowSegment(row, 0, dice.choices(range(77), k=dice.randrange(1, 60))) for row in range(3, 11)]
    model.step(0, [], [RowSegment(0, 0, ids[:60]), *others, RowSegment(1, 0, ids[:60])], 64, [])
    model.step(0, [], [RowSegment(0, 60, ids[60:130]), RowSegment(1, 60, ids[60:130])], 80, [])
    busy = [(0, 130, ids[130]), (1, 130, ids[130]), *((one.row, len(one.tokens), 3) for one in others)]
    rows = [row for row, _, _ in busy]
    found = model.step(11, busy, [], 16, rows, [Shared((0, 1), 128)])
    assert torch.equal(found[0], want[130])
    assert torch.equal(found[1], want[130])


@pytest.mark.parametrize("build", RUNNABLE[1:])
def test_builds_for_less_of_a_processor_compute_what_torch_computes(build: str, tmp_path: Path) -> None:
    folder = save_model("Qwen2", tmp_path)
    compiled, ids = runner(folder, build), random.Random(0).choices(range(77), k=90)
    assert compiled.kernel_name.startswith(f"kernel-{build}-")
    ours, theirs = (path_logits(one, ids, (64, 1, 19)) for one in (compiled, runner(folder, "torch")))
    assert (torch.log_softmax(ours, -1) - torch.log_softmax(theirs, -1)).abs().max() <= 1e-5


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the builds' flags are those of x86")
@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_builds_for_other_processors_compile() -> None:
    for build in set(BUILDS) - set(RUNNABLE):
        assert compile_kernel(build).is_file()


def test_new_weights_are_computed_with_from_the_next_step_on(tmp_path: Path) -> None:
    model = runner(save_model("Llama", tmp_path / "one"))
    ids = list(range(40))
    path_logits(model, ids, (40,))
    other = runner(save_model("Llama", tmp_path / "two", rms_norm_eps=1e-6))
    with torch.no_grad():
        for mine, others in zip(model.model.parameters(), other.model.parameters(), strict=True):
            others.mul_(1.5)
            mine.copy_(others)
    model.arena.clear()
    assert torch.equal(path_logits(model, ids, (40,)), path_logits(other, ids, (40,)))


def test_a_row_that_is_not_finite_spoils_no_other(tmp_path: Path) -> None:
    model = runner(save_model("Llama", tmp_path))
    want = path_logits(model, range(30), (30,))
    with torch.no_grad():
        model.model.model.embed_tokens.weight[70] = float("nan")
    pieces = [RowSegment(0, 0, [70] * 30), RowSegment(1, 0, list(range(30)))]
    found = model.step(0, [], pieces, 32, [*range(30), *range(32, 62)])
    assert found[:30].isnan().all()
    assert torch.equal(found[30:, :70], want[:, :70])


def test_other_models_are_computed_by_torch(tmp_path: Path) -> None:
    windowed = runner(save_model("Mistral", tmp_path, sliding_window=32))
    assert windowed.kernel is None
    assert windowed.kernel_name == ""
    large = runner(save_model("Llama", tmp_path / "large"))
    assert not suits(large.model, {}, 1 << 30)


@pytest.mark.usefixtures("no_compiler")
async def test_without_a_compiler_the_engine_uses_torch_and_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        engine = LocalEngine(folder, EngineConfig(device="cpu"))
    await engine.close()
    assert engine.capabilities.kernel == "torch" == ENGINE.kernel(LocalConfig())
    assert "needs a C compiler" in caplog.text


def test_a_rerun_refuses_another_kernel_than_the_runs(tmp_path: Path) -> None:
    kernel = ENGINE.kernel(LocalConfig())
    assert kernel != "torch"
    start = {"step": 0, "settings": {}}
    (tmp_path / STARTS).write_bytes(orjson.dumps({**start, "engine_kernel": kernel}) + b"\n")
    require_kernel(tmp_path, kernel)
    require_kernel(tmp_path, "")
    with pytest.raises(ConfigError, match=f"generated by the kernel {kernel}, and engine=local has torch"):
        require_kernel(tmp_path, "torch")
    (tmp_path / STARTS).write_bytes(orjson.dumps(start) + b"\n")  # of a version that knew torch alone
    require_kernel(tmp_path, "torch")
    with pytest.raises(ConfigError, match=r"engine\.kernel=torch"):
        require_kernel(tmp_path, kernel)
