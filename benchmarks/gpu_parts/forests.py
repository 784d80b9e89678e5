"""Forests equal paths on this device: FlexAttention's on a GPU, in float32 and under bfloat16 autocast.

The reference is transformers' eager attention on every path as a row. In float32 the two differ by rounding; in
bfloat16 the forest's error against float32 may be at most twice that of transformers' own bfloat16 rows.
"""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM

from agentrl.config import AlgoConfig, Dtype
from agentrl.train.trainers.reference import compute_rows, gradient_distance
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from benchmarks.gpu_parts.report import QWEN3_06B, SMOLLM2, Report
from benchmarks.gpu_parts.trees import forests

SHAPES = {"9 heads in 3 groups": SMOLLM2, "16 heads in 8 groups": QWEN3_06B}
LAYERS = 6


def run(report: Report) -> None:
    """Compare for both shapes."""
    for name, shape in SHAPES.items():
        report.attempt(name, lambda name=name, shape=shape: compare(report, name, shape))


def compare(report: Report, name: str, shape: dict[str, object]) -> None:
    """Log-probabilities and gradients of one shape."""
    layers = 2 if report.small else LAYERS
    changes = {} if report.small else {"num_hidden_layers": layers, "vocab_size": 8192}
    path = report.folder(shape, **changes)
    plain = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    plain.to(report.device).eval()
    size = {"samples": 3, "prompt": 40, "turns": 4, "turn": 6} if report.small else {"samples": 4, "prompt": 700}
    (forest,) = forests(plain.config.vocab_size, budget=1 << 20, **size)
    truth = compute_rows(plain, forest, report.device, autocast=False)
    rough = compute_rows(plain, forest, report.device, autocast=True)
    del plain
    trained = truth.logp != 0
    dtypes: tuple[Dtype, ...] = ("float32", "bfloat16")
    for dtype in dtypes:
        trainer = TorchTrainer(path, TorchConfig(device=report.device, dtype=dtype), AlgoConfig())
        logp = trainer.logprobs([forest])[0]
        trainer.backward(trainer.prepare(forest))
        gradients = {key: p.grad for key, p in trainer.model.named_parameters() if p.grad is not None}
        error = (logp - truth.logp)[trained].abs()
        what = f"{name}, {dtype}, {len(forest)} tokens"
        if dtype == "float32":
            report.below(f"{what}: largest |Δ log-probability|", float(error.max()), 1e-3)
            report.below(f"{what}: gradient's distance from rows'", gradient_distance(gradients, truth.gradients), 2e-3)
        else:
            own = (rough.logp - truth.logp)[trained].abs()
            report.below(f"{what}: mean error, in rows' own bfloat16 errors", float(error.mean() / own.mean()), 2.0)
            ratio = gradient_distance(gradients, truth.gradients) / gradient_distance(rough.gradients, truth.gradients)
            report.below(f"{what}: gradient's error, in rows' own bfloat16 errors", ratio, 2.0)
