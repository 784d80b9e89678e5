"""Compare a trainer or engine with transformers on a small random model of an architecture.

The architecture's configuration is shrunk, keeps one layer of every kind, and gets random weights. A small random
forest of several trees, some paths longer than the small model's windows and scaled positions, is computed by ours;
every path is computed as a row of its own by transformers' eager attention. Where the model sees, trees have images,
and each row goes through transformers' whole model with their pixels.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agentrl.errors import ConfigError, EngineError, InfraError, InvalidInput, UnknownName
from agentrl.models.small import VOCABULARY, Shares, error_text, small_model
from agentrl.models.vision import load_lm, sees
from agentrl.models.vision_trials import RandomImages
from agentrl.rollout.engines.local.runner import UnsupportedModel
from agentrl.train.forest.forest import Forest
from agentrl.train.trainers.megatron.settings import MoeConfig
from agentrl.train.trainers.proof.subjects import SUBJECTS, ModelTrial, Proof
from agentrl.train.trainers.reference import (
    RowResults,
    compute_rows,
    gradient_distance,
    random_forest,
    root_mean_square,
)

if TYPE_CHECKING:
    from agentrl.train.trainers.megatron.trainer import MegatronTrainer

SUPPORTED_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
"""Kinds of layers that forests support."""


def compare(
    config: Any,
    device: str = "cpu",
    seed: int = 0,
    subject: str = "torch",
    family: str | None = None,
    dtype: str = "float32",
    ranks: MegatronTrainer | None = None,
) -> Proof:
    """Compare a trainer or engine in a precision with eager rows, on a small random model of this architecture.

    Raises:
        InfraError: the run's ranks failed or didn't answer; or there was not enough memory.
    """
    shared = None if ranks is None else ranks.scratch
    with tempfile.TemporaryDirectory(prefix="agentrl-proof-", dir=shared) as scratch, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, why = small_model(config, _divisors(ranks))
        if model is None:
            return Proof(untested=why)
        folder = Path(scratch) / "model"
        try:
            _save(model, folder)
            plain = load_lm(folder, torch.float32, "eager")
        except Exception as error:
            return Proof(untested=f"a small model of its kind can't be saved and loaded: {error_text(error)}")
        here = device if torch.cuda.is_available() else "cpu"  # ranks may be on another node
        plain.to(here).eval()
        seen = RandomImages(plain.config) if sees(folder) else None
        forest = random_forest(random.Random(seed), VOCABULARY, seen=seen)
        try:
            want = compute_rows(plain, forest, here)
            own = None if dtype == "float32" else _own_error(plain, folder, forest, want, here, subject, dtype)
        except Exception as error:
            return Proof(untested=f"transformers' eager attention can't compute its rows: {error_text(error)}")
        try:
            return SUBJECTS[subject].compute(ModelTrial(folder, forest, want, device, family, dtype, own, ranks))
        except (ConfigError, EngineError, InvalidInput, UnknownName) as error:
            reason = error.__cause__ if isinstance(error.__cause__, UnsupportedModel) else error
            words = str(reason).removeprefix(f"can't load model={str(folder)!r}: ")
            return Proof(fault=words.replace(str(folder), "this model"))
        except Exception as error:
            if isinstance(error, InfraError) and ranks is not None:
                raise
            if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error):
                raise InfraError(f"not enough memory to test the architecture: {error_text(error)}") from error
            return Proof(fault=_refusal(config, SUBJECTS[subject].what, error))


def _refusal(config: Any, what: str, error: Exception) -> str:
    """Say why the layers can't compute it, as a sentence; what they raised is often an internal detail."""
    kinds = sorted(
        {str(kind) for kind in getattr(config.get_text_config(), "layer_types", None) or ()} - SUPPORTED_LAYERS
    )
    if kinds:
        return f"it has layers of another kind ({', '.join(kinds)}), which refuse a {what}"
    if isinstance(error, AttributeError | TypeError | LookupError):
        return (
            f"its layers need more than a {what} gives them: transformers' code for it ends in {type(error).__name__}"
        )
    return f"its layers refuse a {what}: {error_text(error).removeprefix('ValueError: ')}"


def _own_error(
    plain: Any, folder: Path, forest: Forest, want: RowResults, device: str, subject: str, dtype: str
) -> tuple[float, float]:
    """The error of transformers' own rows in a precision: root mean square in nats, and relative, of the gradient."""
    if subject == "torch":  # float32 weights under autocast; the others hold their weights in the precision
        rough = compute_rows(plain, forest, device, autocast=True)
    else:
        low = load_lm(folder, getattr(torch, dtype), "eager").to(device).eval()
        rough = compute_rows(low, forest, device)
    return root_mean_square(rough.logp, want.logp, forest), gradient_distance(rough.gradients, want.gradients)


def _divisors(ranks: MegatronTrainer | None) -> Shares:
    """The numbers that the small model's sizes must be multiples of."""
    if ranks is None:
        return Shares()
    from agentrl.train.trainers.megatron.layout import layout_of

    config, layout = ranks.config.model_copy(update={"moe": MoeConfig()}), ranks.layout
    chunks = layout.pipeline * layout.interleave
    return Shares(chunks, layout.tensor, layout.expert, lambda small: layout_of(config, small, layout.ranks))


def _save(model: Any, folder: Path) -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()
    model.save_pretrained(folder)
