"""An engine that computes something else than the trainer on a long prompt ends the run before its first step."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import agentrl
from agentrl.common import cores
from agentrl.config import EngineConfig, RunConfig, TrainerConfig, WeightsConfig
from agentrl.errors import EngineError
from agentrl.models import tiny
from agentrl.overrides import validate
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.train.driver.engine_check import compare_engine, difference_bound, probe_bound, prompt_length
from agentrl.train.plan.model_checks import is_driven_hard
from agentrl.train.trainers.loaded import Loaded, compare
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from tests.train.backends.test_loaded import folder_of, missing


def run_of(**sections: Any) -> RunConfig:
    return validate({"env": {"name": "calculator"}, "engine": {"device": "cpu"}, **sections}, RunConfig)


def sections(config: RunConfig) -> tuple[WeightsConfig, TrainerConfig, EngineConfig]:
    return config.weights, config.trainer, config.engine


async def compared(
    folder: Path, engine_folder: Path | None = None, dtype: str = "float32", change: Any = None, **sections: Any
) -> str | None:
    """What comes of an engine and a trainer on two folders' models."""
    engine = LocalEngine(engine_folder or folder, EngineConfig(device="cpu", max_batch=4, dtype=dtype))
    if change is not None:
        with torch.no_grad():
            change(engine.runner.model)
    trainer = TorchTrainer(folder, TorchConfig(device="cpu"))
    config = run_of(engine={"device": "cpu", "dtype": dtype}, trainer={"device": "cpu"}, **sections)
    try:
        loaded = compare(trainer, folder, precisions=(dtype,))
        return await compare_engine(engine, trainer, config.learners["main"], folder, loaded)
    finally:
        await engine.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.slow
async def test_an_engine_and_a_trainer_that_compute_the_same_agree_to_the_end_of_the_context(
    dtype: str, tmp_path: Path
) -> None:
    line = await compared(folder_of(tmp_path / "model"), dtype=dtype)
    assert line is not None
    assert "agree on a prompt of 511 tokens" in line


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_an_engine_with_other_weights_in_one_layer_is_refused_with_the_numbers(
    dtype: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "model")
    with pytest.raises(
        EngineError, match=r"local and the trainer disagree before the first step.*tokens 0 to 63.*nats"
    ):
        await compared(folder, dtype=dtype, change=missing)


@pytest.mark.slow
async def test_an_engine_whose_window_is_another_is_refused_and_the_message_says_from_where_on(tmp_path: Path) -> None:
    """What no short prompt can show: the first 64 tokens see the same in both windows."""
    folder = folder_of(tmp_path / "model", kind="mistral")
    other = shutil.copytree(folder, tmp_path / "other")
    for path, window in ((folder, 70), (other, 200)):
        text = (path / "config.json").read_text().replace('"sliding_window": 12', f'"sliding_window": {window}')
        (path / "config.json").write_text(text)
    with pytest.raises(EngineError, match=r"the 63 before agree, so it is something that changes with the length"):
        await compared(folder, other)


@pytest.mark.slow
async def test_the_comparison_can_be_left_out_or_loosened(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model")
    assert await compared(folder, change=missing, weights={"start_tokens": 0}) is None
    assert await compared(folder, change=missing, weights={"start_bound": 100.0}) is not None


@pytest.mark.slow
async def test_a_comparison_that_no_engine_of_a_fleet_answers_ends_with_the_settings_that_shorten_it(
    tmp_path: Path,
) -> None:
    """A server on a busy machine took longer than weights.timeout, and the run ended with a ValueError of `max`."""

    class Silent(LocalEngine):
        async def scores(self, input_ids: Sequence[int], temperature: float = 1.0) -> dict[str, list[float]]:
            return {}

    folder = folder_of(tmp_path / "model")
    engine, trainer = Silent(folder, EngineConfig(device="cpu")), TorchTrainer(folder, TorchConfig(device="cpu"))
    try:
        with pytest.raises(EngineError, match=r"no engine scored the prompt of \d+ tokens .* weights\.start_tokens=N"):
            await compare_engine(engine, trainer, run_of().learners["main"], folder)
    finally:
        await engine.close()


def test_the_bound_is_twice_what_both_precisions_are_off_by_in_transformers() -> None:
    low = run_of(engine={"dtype": "bfloat16"}, trainer={"dtype": "bfloat16"})
    mixed = run_of(engine={"dtype": "bfloat16"})
    measured = Loaded(own={"bfloat16": 0.02})
    assert difference_bound(*sections(low), measured) == pytest.approx(0.08)
    assert difference_bound(*sections(mixed), measured) == pytest.approx(0.04)
    assert difference_bound(*sections(run_of()), measured) == 2e-3
    assert difference_bound(*sections(mixed), None) == pytest.approx(0.2), "nothing was measured"


def test_the_probes_bound_is_narrow_in_float32_and_lets_honest_runs_in_bfloat16_go_on() -> None:
    """It was 0.1 for all: SmolLM2-135M is off by 0.08 to 0.11 in bfloat16 on a CPU, and by 5e-6 in float32."""
    low = run_of(engine={"dtype": "bfloat16"}, trainer={"dtype": "bfloat16"})
    measured = Loaded(own={"bfloat16": 0.05})
    assert probe_bound(*sections(run_of()), measured) == 2e-3
    assert probe_bound(*sections(low), measured) == pytest.approx(0.4)
    assert probe_bound(*sections(run_of(engine={"dtype": "bfloat16"})), measured) == pytest.approx(0.2)
    assert probe_bound(*sections(run_of(weights={"dtype": "bfloat16"})), measured) == pytest.approx(0.2), (
        "they are sent in it"
    )
    assert probe_bound(*sections(run_of(weights={"probe_bound": 0.03})), measured) == 0.03


@pytest.mark.slow
def test_the_prompt_is_as_long_as_the_context_the_budget_and_some_seconds_allow() -> None:
    class Small:
        hidden_size, num_hidden_layers, vocab_size = 64, 2, 100

    class Large(Small):
        hidden_size, num_hidden_layers = 4096, 32

    cpu = {"device": "cpu"}
    assert prompt_length(*sections(run_of(trainer=cpu)), Small, 2000, False) == 2000
    assert prompt_length(*sections(run_of(trainer=cpu | {"token_budget": 512})), Small, 2000, False) == 512
    assert prompt_length(*sections(run_of(trainer=cpu, weights={"start_tokens": 300})), Large, 2000, False) == 300
    assert prompt_length(*sections(run_of(trainer=cpu)), Large, 100_000, False) < 64


@pytest.mark.slow
def test_a_run_whose_engine_has_a_layer_wrong_ends_before_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.build(tmp_path / "model", ["<|im_start|>user\nWhat is 1 + 1?<|im_end|>\n"])
    make = LocalEngine.__init__

    def mistaken(self: LocalEngine, *inputs: Any, **options: Any) -> None:
        make(self, *inputs, **options)
        with torch.no_grad():
            self.runner.model.model.layers[1].mlp.down_proj.weight *= -20

    monkeypatch.setattr(LocalEngine, "__init__", mistaken)
    with pytest.raises(EngineError, match="disagree before the first step"):
        agentrl.train("calculator", model=str(model), steps=1, run_dir=str(tmp_path / "run"))


@pytest.mark.parametrize(
    ("cores_there", "steps", "megabytes", "kind", "apart"),
    [
        (2, 32, 1, "llama", True),
        (1, 32, 1, "llama", False),
        (2, 15, 1, "llama", False),
        (2, 32, 30, "llama", False),
        (2, 32, 1, "qwen2_5_vl", False),
    ],
)
def test_an_engine_leaves_the_runs_process_where_a_small_model_that_sees_nothing_plays_much(
    cores_there: int,
    steps: int,
    megabytes: int,
    kind: str,
    apart: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cores, "list_allowed", lambda: list(range(cores_there)))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(megabytes << 20)
    config = run_of(steps=steps, rollout={"groups_per_step": 16, "group_size": 8})
    assert is_driven_hard(config.rollout, config.steps, tmp_path) is apart
