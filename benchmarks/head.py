"""Log-probabilities and entropy over a vocabulary of 128 k in chunks, against materialised logits.

    python -m benchmarks.head [--rows 2048] [--width 512] [--repeats 3]

Forward and backward in float32 on one thread of the CPU. Time is processor time, the sides in turn, the median of
their ratios; memory is how far a process of its own grows at its peak, less the gradients, which both sides need. The
aims: at most a tenth of the memory, at most 1.05 times the time. `benchmarks.gpu` measures the same on a GPU.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from agentrl.train.forest.forest import Rows
from agentrl.train.trainers.head import CHUNK_ELEMENTS, token_logps
from benchmarks.machine import machine

VOCABULARY = 131072
MOST_MEMORY, MOST_TIME = 0.1, 1.05
SIDES = ("chunked", "whole")


class Case:
    """A language-model head, hidden states, and targets at random.

    Args:
        vocabulary: how many logits a row has.
        width: of the hidden states.
        count: rows.
        device: where all of it lies.
        chunk: the most logits that the chunked side holds at once.
    """

    def __init__(self, vocabulary: int, width: int, count: int, device: str, chunk: int = CHUNK_ELEMENTS) -> None:
        torch.manual_seed(0)
        self.chunk = chunk
        self.head = nn.Linear(width, vocabulary, bias=False, device=device)
        self.hidden = torch.randn(count, width, device=device, requires_grad=True)
        place = torch.arange(count, device=device)
        self.targets = torch.randint(0, vocabulary, (count,), device=device)
        ones = torch.ones(count, device=device)
        self.rows = Rows(place, place, self.targets, ones, ones, ones, ones, place, place, place, place)

    def chunked(self) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each row, as the trainer computes them."""
        return token_logps(self.head, self.hidden, self.rows, self.chunk)

    def whole(self) -> tuple[Tensor, Tensor]:
        """The same from all logits at once."""
        logps = torch.log_softmax(self.head(self.hidden).float(), -1)
        return logps.gather(1, self.targets[:, None])[:, 0], -(logps.exp() * logps).sum(-1)

    def backward(self, compute: Callable[[], tuple[Tensor, Tensor]]) -> None:
        """Forward and backward of a loss of both."""
        logp, entropy = compute()
        (logp.mean() + 0.01 * entropy.mean()).backward()


def seconds(case: Case, side: str) -> float:
    """Processor time of a forward and backward."""
    case.head.weight.grad = case.hidden.grad = None
    began = time.process_time()
    case.backward(getattr(case, side))
    return time.process_time() - began


def peak(side: str, width: int, count: int) -> int:
    """Bytes by which this process grows at its peak, less the gradients."""
    case = Case(VOCABULARY, width, count, "cpu")
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    case.backward(getattr(case, side))
    gradients = 4 * (case.head.weight.numel() + case.hidden.numel())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - pages * resource.getpagesize() - gradients


def main(given: Sequence[str] | None = None) -> int:
    """Measure, and print both ratios; 1 where an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peak", choices=SIDES, help="measure one side's memory in this process, and print it")
    words = parser.parse_args(given)
    torch.set_num_threads(1)
    if words.peak:
        print(peak(words.peak, words.width, words.rows))
        return 0
    print(machine())
    sizes = ["--rows", str(words.rows), "--width", str(words.width)]
    command = [sys.executable, "-m", "benchmarks.head", *sizes, "--peak"]
    chunked, whole = (int(subprocess.check_output([*command, side])) for side in SIDES)
    print(f"memory: {chunked / 2**20:.0f} MiB, {whole / 2**20:.0f} MiB with all logits: {chunked / whole:.3f}")
    case = Case(VOCABULARY, words.width, words.rows, "cpu")
    taken = [tuple(seconds(case, side) for side in SIDES) for _ in range(words.repeats)]
    ratio = statistics.median(one / other for one, other in taken)
    each = ", ".join(f"{one:.1f} s to {other:.1f} s" for one, other in taken)
    print(f"time: {ratio:.2f} times that of all logits at once ({each})")
    return int(chunked / whole > MOST_MEMORY or ratio > MOST_TIME)


if __name__ == "__main__":
    sys.exit(main())
