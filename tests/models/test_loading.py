from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from agentrl.models.loading import load_causal_lm, new_causal_lm
from tests.rollout.engines.conftest import folder

__all__ = ["folder"]

THREADS = 6


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
