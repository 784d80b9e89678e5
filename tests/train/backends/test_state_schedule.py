"""Layers that carry a state along the row follow a forest's paths, forward and backward."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig

from agentrl.config import AlgoConfig
from agentrl.models.loading import load_causal_lm
from agentrl.models.mixers import LayerState, mixers_of
from agentrl.models.small import VOCABULARY, small_model
from agentrl.train.forest.forest import Forest
from agentrl.train.trainers import reference
from agentrl.train.trainers.proof.comparison import compare
from agentrl.train.trainers.reference import compute_rows, gradient_distance, paths_to_leaves
from agentrl.train.trainers.state_schedule import paths, schedule, segments
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from tests.train.backends.test_attention import random_forest

SHAPE = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "num_hidden_layers": 2}
LAYERS = {"layer_types": ["linear_attention", "full_attention"]}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "attn_layer_indices": [1]}
KINDS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {**SHAPE, **LAYERS},  # the gated delta rule
    "bamba": {**SHAPE, **MAMBA},  # Mamba 2
    "jamba": {**SHAPE, "attn_layer_period": 2, "attn_layer_offset": 1},  # Mamba, which continues nothing
}


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model of that kind."""
    torch.manual_seed(0)
    model, why = small_model(AutoConfig.for_model(request.param, **KINDS[request.param]))
    assert model is not None, why
    path = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def trainer(folder: Path) -> TorchTrainer:
    return TorchTrainer(folder, TorchConfig(device="cpu"), AlgoConfig())


def forest_of(seed: int) -> Forest:
    forest = random_forest(seed, trees=3)
    forest.token_ids.remainder_(VOCABULARY)
    return forest


def gradients(trainer: TorchTrainer, forest: Forest) -> dict[str, torch.Tensor]:
    trainer.model.zero_grad()
    trainer.backward(trainer.prepare(forest))
    return {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6))
@pytest.mark.slow
def test_a_forest_gives_the_log_probabilities_and_the_gradient_of_its_paths(
    folder: Path, trainer: TorchTrainer, seed: int
) -> None:
    forest = forest_of(seed)
    want = compute_rows(load_causal_lm(folder, torch.float32, "eager").eval(), forest, "cpu")
    (logp,) = trainer.logprobs([forest])
    assert torch.allclose(logp, want.logp, atol=1e-4)
    assert gradient_distance(gradients(trainer, forest), want.gradients) < 1e-4


@pytest.mark.slow
def test_recomputed_layers_go_along_the_same_paths(folder: Path, trainer: TorchTrainer) -> None:
    again = TorchTrainer(folder, TorchConfig(device="cpu", recompute="full"), AlgoConfig())
    forest = forest_of(1)
    assert gradient_distance(gradients(again, forest), gradients(trainer, forest)) < 1e-6


@pytest.mark.slow
def test_a_copy_of_a_model_computes_with_its_own_weights(trainer: TorchTrainer) -> None:
    """References and critics are copies of the policy that is being changed."""
    twin = copy.deepcopy(trainer.model)
    own = {id(module) for module in twin.modules()}
    assert mixers_of(twin)
    assert all(id(mixer.forward.__self__) in own for mixer in mixers_of(twin))  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_state_that_were_forgotten_at_a_branch_would_be_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    concatenate = LayerState.concatenate

    def forgotten(parts: list[tuple[LayerState, int]]) -> LayerState:
        state = concatenate(parts)
        return LayerState(state.conv, {name: torch.zeros_like(value) for name, value in state.recurrent.items()})

    monkeypatch.setattr(LayerState, "concatenate", forgotten)
    assert compare(AutoConfig.for_model("qwen3_5_text", **KINDS["qwen3_5_text"])).logp > 0.01


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
@pytest.mark.slow
def test_every_token_is_computed_behind_what_its_path_holds_before_it(seed: int) -> None:
    forest = random_forest(seed) if seed % 2 else reference.random_forest(random.Random(seed), VOCABULARY)
    end, index = forest.end.tolist(), torch.arange(len(forest))
    for parts in (segments(end), paths(end)):
        behind = list[tuple[int, ...]]()
        seen = set[int]()
        for part in parts:
            path = (() if part.before is None else behind[part.before]) + part.tokens
            behind.append(path)
            last = part.tokens[-1]
            assert path == tuple(index[(index <= last) & (forest.end > last)].tolist())
            assert part.leaf == (end[last] == last + 1)
            assert len(part.tokens) > 1 or part.leaf
            seen.update(part.tokens)
        alone = {int(path[0]) for path in paths_to_leaves(forest) if len(path) == 1}
        assert seen == set(range(len(end))) - alone


def test_calls_hold_parts_of_about_one_length_and_inner_ones_come_before_what_continues_them() -> None:
    end = [500, *[400] * 99, *[250] * 150, *[400] * 150, *[405] * 5, *[500] * 95]
    way = schedule(segments(end), len(end), torch.device("cpu"))
    assert [(call.tokens.shape, call.keep) for call in way.calls] == [
        ((1, 100), True),
        ((1, 96), False),
        ((1, 6), False),
        ((2, 150), False),
    ]
    outputs = torch.cat([call.tokens.flatten() for call in way.calls])
    assert torch.equal(outputs[way.found], torch.arange(len(end)))
