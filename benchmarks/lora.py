"""An adapter against the whole model, on the same forests: `python -m benchmarks.lora [--small] [--rounds 3]`.

A random model of SmolLM2-135M's shape in float32 takes steps (forward, backward, optimizer) on a group's forest, whole
and with adapters of rank 1 and 16. One trainer at a time is in memory. Times are the least of a few steps, since the
machine may be busy. Bytes are of weights, of the gradients and the optimizer state of what is trained, and of the
tensors that a publication moves. `--small` takes a model of three million weights.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agentrl.config import AlgoConfig, LoraConfig
from agentrl.rollout.weights.buckets import ADAPTER, Weights
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Group, Task
from benchmarks.machine import machine
from benchmarks.workloads import workload

SMOLLM2 = {
    **{"vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30},
    **{"num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True},
}
SMALL = {**SMOLLM2, "vocab_size": 4096, "num_hidden_layers": 2, "hidden_size": 288, "intermediate_size": 768}


@dataclass(frozen=True)
class Cost:
    """The cost of one way to train: seconds of a step, bytes held, bytes of a publication."""

    seconds: float
    held: int
    moved: int


def measure(folder: Path, rank: int, rounds: int) -> Cost:
    """Train with an adapter, or at rank 0 the whole model."""
    lora = LoraConfig(rank=rank) if rank else None
    trainer = TorchTrainer(folder, TorchConfig(device="cpu"), AlgoConfig(), total_steps=rounds + 1, lora=lora)
    vocabulary = trainer.model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    sessions = workload(random.Random(0), vocabulary, samples=4, prompt=96, turns=2, turn=20)
    groups = [Group("g", Task(id="t"), sessions)]
    forests = pack(groups, trainer.algorithm.credit(groups), 512)
    taken = []
    for _ in range(rounds + 1):  # the first makes the optimizer's state
        began = time.monotonic()
        trainer.step(forests)
        taken.append(time.monotonic() - began)
    weights = sum(parameter.nbytes for parameter in trainer.model.parameters())
    trained = sum(parameter.nbytes for parameter in trainer.optimizer.parameters)
    states = trainer.optimizer.adam.state.values()
    state = sum(tensor.nbytes for each in states for tensor in each.values() if torch.is_tensor(tensor))
    handed = Weights.of(trainer)
    part = handed.parts.get(ADAPTER)
    moved = sum(tensor.nbytes for _, tensor in handed) if part is None else part.nbytes
    trainer.close()
    return Cost(min(taken[1:]), weights + trained + state, moved)


def main() -> None:
    """Measure, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as scratch:
        LlamaForCausalLM(LlamaConfig(**(SMALL if given.small else SMOLLM2))).save_pretrained(scratch)
        whole = measure(Path(scratch), 0, given.rounds)
        print(f"whole: {whole.seconds:.2f} s a step, {whole.held:,} bytes held, {whole.moved:,} bytes published")
        for rank in (1, 16):
            cost = measure(Path(scratch), rank, given.rounds)
            seconds, held = cost.seconds / whole.seconds, cost.held / whole.held
            print(f"rank {rank}: {seconds:.2f} of the seconds, {held:.3f} of the bytes held", end=", ")
            print(f"{whole.moved / cost.moved:.1f} times fewer bytes published ({cost.moved:,})")


if __name__ == "__main__":
    main()
