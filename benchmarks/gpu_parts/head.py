"""The chunked language-model head against materialised logits: peak memory and time, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from agentrl.train.trainers.head import chunk_on
from benchmarks.gpu_parts.report import Report
from benchmarks.head import Case


def run(report: Report) -> None:
    """A vocabulary of 128 k, a width of 2,048 and 4,096 rows."""
    vocabulary, width, count = (1024, 32, 64) if report.small else (131072, 2048, 4096)
    chunk = 1024 * 16 if report.small else chunk_on(torch.device(report.device))
    case = Case(vocabulary, width, count, report.device, chunk)

    def backward(compute: Callable[[], tuple[Tensor, Tensor]]) -> Callable[[], None]:
        def both() -> None:
            with torch.autocast(report.device, torch.bfloat16):
                logp, entropy = compute()
            (logp.mean() + 0.01 * entropy.mean()).backward()

        return both

    hidden, sides = case.hidden, {"chunked": backward(case.chunked), "whole": backward(case.whole)}
    gradients = {}
    for name, side in sides.items():
        side()
        assert hidden.grad is not None
        gradients[name], hidden.grad = hidden.grad.clone(), None
    apart = (gradients["chunked"] - gradients["whole"]).norm() / gradients["whole"].norm()
    report.below("gradient's distance from that of materialised logits", float(apart), 2e-2)
    seconds = {name: report.seconds(side) for name, side in sides.items()}
    memory = {name: report.peak(side) for name, side in sides.items()}
    what = f"{count} rows, vocabulary {vocabulary}, bfloat16"
    judged = report.device == "cuda"
    if judged:
        report.below(f"{what}: peak memory, of materialised logits'", memory["chunked"] / memory["whole"], 0.1)
    report.below(f"{what}: time, of materialised logits'", seconds["chunked"] / seconds["whole"], 1.35, judged=judged)
