"""Model FLOPs utilisation and memory of a training pass, torch trainer, bfloat16, layers recomputed.

FLOPs are those of the model, recomputation not counted (Chowdhery et al., arXiv 2204.02311, appendix B): 6 for each
weight that multiplies a token, 6 for the head's weights and a trained token, and 12 times heads times head width for
each visible pair of query and key in each layer. They are held against the rate of a large bfloat16 matrix product in
the same process. Memory is a pass's peak, weights and gradients included, against 8 bytes a weight (both in float32).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from agentrl.config import AlgoConfig
from agentrl.train.forest.forest import Forest
from agentrl.train.trainers.attention import NAME
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from benchmarks.gpu_parts.report import QWEN3_06B, QWEN3_4B, Report
from benchmarks.gpu_parts.trees import forests

PUBLISHED = 0.36
"""prime-rl's, of a larger model on several GPUs and of the chip's nominal rate: an aim, and no comparison."""
CASES = (
    ("0.6 B", QWEN3_06B, 1 << 14),
    ("4 B", QWEN3_4B, 1 << 14),
    ("0.6 B", QWEN3_06B, 1 << 16),
    ("4 B", QWEN3_4B, 1 << 16),
)


def run(report: Report) -> None:
    """The four cases, in order of worth."""
    ceiling = matmul_rate(report)
    report.add("bfloat16 matrix product, TFLOP/s", ceiling / 1e12)
    for name, shape, tokens in CASES[:1] if report.small else CASES:
        case = f"{name} at {tokens >> 10} k tokens"
        report.attempt(case, lambda c=case, s=shape, t=tokens: measure(report, c, s, t, ceiling))


def measure(report: Report, case: str, shape: dict[str, Any], tokens: int, ceiling: float) -> None:
    """One shape at one length."""
    trainer = RandomTrainer(report, shape)
    config: Any = trainer.model.config
    if report.small:
        size = {"samples": 2, "prompt": 64, "turns": 2, "turn": 16}
    else:  # a quarter of the tokens is the shared prompt, and every session has two paths
        size = {"samples": 8, "prompt": tokens // 4, "turns": 6, "turn": tokens // 8 * 3 // 4 // 12 - 4}
    batch = forests(config.vocab_size, budget=1 << 20, **size)
    (forest,) = batch

    def work() -> None:
        trainer.backward(trainer.prepare(forest))

    def one_pass() -> None:
        trainer.model.zero_grad()
        work()

    if report.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = report.seconds(one_pass, repeats=3, warm=2)
    weights = sum(p.numel() for p in trainer.model.parameters())
    rate = flops(trainer.model, forest) / seconds
    report.add(f"{case} ({len(forest)} in the forest): tokens per second", len(forest) / seconds)
    report.above(f"{case}: MFU, of the matrix product's rate", rate / ceiling, PUBLISHED, judged=False)
    if report.device == "cuda":
        peak = torch.cuda.max_memory_allocated()
        report.add(f"{case}: peak GiB", peak / 2**30)
        report.add(f"{case}: of it beyond weights and gradients, bytes a token", (peak - 8 * weights) / len(forest))


class RandomTrainer(TorchTrainer):
    """A torch trainer whose weights are made on the device, and come from no folder."""

    def __init__(self, report: Report, shape: dict[str, Any]) -> None:
        self.report, self.shape = report, shape
        config = TorchConfig(device=report.device, dtype="bfloat16", recompute="full")
        super().__init__(report.file.parent, config, AlgoConfig())

    def load_model(self) -> nn.Module:
        """A random model."""
        with torch.device(self.device):
            model: nn.Module = AutoModelForCausalLM.from_config(
                self.report.config(self.shape), attn_implementation=NAME, dtype=torch.float32
            )
        return model


def flops(model: nn.Module, forest: Forest) -> float:
    """What a forward and a backward of this forest need; see the module's docstring."""
    config: Any = model.config
    embedding = config.vocab_size * config.hidden_size
    body = sum(p.numel() for p in model.parameters()) - embedding * (1 if config.tie_word_embeddings else 2)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    pairs = float((forest.position + 1).sum())
    attention = 12.0 * config.num_hidden_layers * config.num_attention_heads * head_dim * pairs
    return 6.0 * body * len(forest) + 6.0 * embedding * forest.trained + attention


def matmul_rate(report: Report) -> float:
    """FLOP/s of a large bfloat16 product on random numbers."""
    size = 64 if report.small else 8192
    one, other = (torch.randn(size, size, device=report.device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / report.seconds(lambda: one @ other, repeats=10, warm=3)
