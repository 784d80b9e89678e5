"""A forest against rows: forward and backward of the same loss; rows take transformers' causal fast path."""

from __future__ import annotations

import torch

from benchmarks import forest
from benchmarks.gpu_parts.report import SMOLLM2, Report

SIZES = {"8 samples of 512 on a prompt of 4,096": (4096, 512), "8 samples of 512 on a prompt of 1,024": (1024, 512)}


def run(report: Report) -> None:
    """Time both sides for each size."""
    path = report.folder(SMOLLM2, max_position_embeddings=8192)
    sizes = {"8 samples of 16 on a prompt of 64": (64, 16)} if report.small else SIZES
    for name, (prompt, completion) in sizes.items():
        report.attempt(name, lambda name=name, p=prompt, c=completion: compare(report, path, name, p, c))


def compare(report: Report, path: object, name: str, prompt: int, completion: int) -> None:
    """One size, under bfloat16 autocast on both sides."""
    sides = forest.sides(path, report.device, "bfloat16", prompt, completion)
    seconds = {side: report.seconds(sides[side]) for side in ("forest", "rows")}
    tokens = forest.SAMPLES * (prompt + completion) / (prompt + forest.SAMPLES * completion)
    ratio = seconds["rows"] / seconds["forest"]
    what, judged = f"{name}: times as fast as rows (token ratio {tokens:.2f})", report.device == "cuda"
    report.above(what, ratio, 0.6 * tokens, judged=judged)
    memory = {side: report.peak(sides[side]) for side in ("forest", "rows")}
    if memory["rows"]:
        report.add(f"{name}: peak memory, of rows'", memory["forest"] / memory["rows"])
    assert torch.isfinite(torch.tensor(ratio))
