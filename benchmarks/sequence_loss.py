"""A step of a loss over sequences against one of `grpo`: `python -m benchmarks.sequence_loss`.

GSPO over whole paths on eight branching sessions that share a prompt, with a random Llama
of 7 M parameters on the CPU, one update a step. Where all tokens are of the trainer's version, that is a pass forward
and backward, as with `grpo`; where some are stale, a pass without gradient comes before it, as before every later
update. Sides take turns, medians of ratios to `grpo` are compared. The aim is at most 1.5.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM

from agentrl.config import AlgoConfig
from agentrl.train.algorithms import algorithm_settings
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Group, Task
from benchmarks.machine import machine
from benchmarks.workloads import workload

REPEATS, VOCABULARY = 3, 2048


def seconds(folder: Path, algo: AlgoConfig, *, stale: bool) -> float:
    """How long a step takes, with a fresh trainer."""
    trainer = TorchTrainer(folder, TorchConfig(device="cpu"), algo)
    trainer.version = int(stale)
    groups = [Group("g", Task(id="t"), workload(random.Random(0), VOCABULARY, prompt=256))]
    credit, kind = trainer.algorithm.credit(groups), trainer.algorithm.sequence
    forests = pack(groups, credit, 2048, merge=algo.merge, sequence=kind)
    began = time.monotonic()
    trainer.step(forests)
    return time.monotonic() - began


def main() -> None:
    """Measure, and print the ratios."""
    print(machine())
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    with tempfile.TemporaryDirectory() as scratch:
        LlamaForCausalLM(config).save_pretrained(scratch)
        sides = [algorithm_settings({"name": name}) for name in ("grpo", "gspo")]
        for stale in (False, True):
            taken = [[seconds(Path(scratch), side, stale=stale) for side in sides] for _ in range(REPEATS)]
            ratio = statistics.median(two / one for one, two in taken)
            tokens = "stale" if stale else "current"
            print(f"{tokens} tokens: {ratio:.2f} times grpo's {min(one for one, _ in taken):.2f} s")


if __name__ == "__main__":
    main()
