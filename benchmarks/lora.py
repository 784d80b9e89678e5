"""An adapter against the whole model, on the same forests: `OMP_NUM_THREADS=1 python -m benchmarks.lora [--small]`.

A random model of SmolLM2-135M's shape in float32 takes steps (forward, backward, optimizer) on a group's forest, whole
and with adapters of rank 1 and 16. One trainer at a time is in memory. Times are processor seconds, the least of a few
steps, since the machine may be busy: with several threads they count those that wait for each other. Bytes are of
weights, of the gradients and the optimizer state of what is trained, and of the tensors that a publication moves.

Then two tenants of a training server ask for passes over data of 64 tokens: `separate`, one request after the other,
and `mixed`, as many in a pass as wait (`passes`). Their bytes are counted with gradients of both; those of two policies
of a run (`lora.tenants=separate`) as their updates find them. `--small` takes a model of three million weights;
`--tenants` measures tenants alone, on the model of SmolLM2's shape too; `--peaks BUDGET …` the peak resident memory of
processes that train on forests of so many tokens.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agentrl.config import AlgoConfig, LoraConfig
from agentrl.rollout.weights.buckets import ADAPTER, Weights
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import pack
from agentrl.train.server.learner import AdapterSpec, PassResult, SharedBase
from agentrl.train.server.messages import Datum, PassRequest
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
    """The cost of one way to train: processor seconds of a step, bytes held, bytes of a publication."""

    seconds: float
    held: int
    moved: int


def measure(folder: Path, rank: int, rounds: int) -> Cost:
    """Train with an adapter, or at rank 0 the whole model."""
    lora = LoraConfig(rank=rank) if rank else None
    trainer = TorchTrainer(folder, TorchConfig(device="cpu"), AlgoConfig(), total_steps=rounds + 1, lora=lora)
    forests = forests_of(trainer, 4, 512)
    taken = []
    for _ in range(rounds + 1):  # the first makes the optimizer's state
        began = time.process_time()
        trainer.step(forests)
        taken.append(time.process_time() - began)
    weights = sum(parameter.nbytes for parameter in trainer.model.parameters())
    trained = sum(parameter.nbytes for parameter in trainer.optimizer.parameters)
    states = trainer.optimizer.adam.state.values()
    state = sum(tensor.nbytes for each in states for tensor in each.values() if torch.is_tensor(tensor))
    handed = Weights.of(trainer)
    part = handed.parts.get(ADAPTER)
    moved = sum(tensor.nbytes for _, tensor in handed) if part is None else part.nbytes
    trainer.close()
    return Cost(min(taken[1:]), weights + trained + state, moved)


def forests_of(trainer: TorchTrainer, samples: int, budget: int) -> list[Forest]:
    """Forests of a group with so many sessions, of 80 tokens each beside their prompt of 96."""
    vocabulary = trainer.model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    sessions = workload(random.Random(0), vocabulary, samples=samples, prompt=96, turns=2, turn=20)
    groups = [Group("g", Task(id="t"), sessions)]
    return pack(groups, trainer.algorithm.credit(groups), budget)


def measure_peak(folder: Path, rank: int, budget: int) -> tuple[int, int]:
    """Return the tokens of a forest that fills a budget, and the peak resident bytes of this process with a step on it.

    The process is to be a new one.
    """
    lora = LoraConfig(rank=rank) if rank else None
    config = TorchConfig(device="cpu", token_budget=budget)
    trainer = TorchTrainer(folder, config, AlgoConfig(), total_steps=1, lora=lora)
    forests = forests_of(trainer, (budget - 96) // 80, budget)
    trainer.step(forests)
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    trainer.close()
    return max(len(forest.token_ids) for forest in forests), int(peak[1]) << 10


def compare_peaks(folder: Path, ranks: Sequence[int], budgets: Sequence[int]) -> None:
    """Print the peak resident memory of training the whole model and adapters, each in a process of its own."""
    for budget in budgets:
        for rank in (0, *ranks):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                tokens, peak = pool.apply(measure_peak, (folder, rank, budget))
            name = f"rank {rank}" if rank else "whole"
            print(f"{name}, forests of {tokens} tokens: {peak / 1e9:.2f} GB resident at most", flush=True)


@dataclass(frozen=True)
class Tenants:
    """The cost of passes for two tenants, and how far their numbers are from each other.

    Attributes:
        separate: tokens a processor second of one request after the other.
        mixed: tokens a processor second of passes over several requests.
        logprob: the largest difference of a log-probability, in nats.
        gradient: the norm of the gradients' difference over their norm.
        held: bytes of weights, gradients and optimizer state of both, over one tenant's.
    """

    separate: float
    mixed: float
    logprob: float
    gradient: float
    held: float


def measure_tenants(base: SharedBase, requests: int, data: int, rounds: int, tokens: int = 64) -> Tenants:
    """Compute passes of two tenants with adapters of rank 16, each of so many requests with so many data."""
    draw = np.random.default_rng(0)

    def request() -> PassRequest:
        ids = draw.integers(0, base.vocabulary, (data, tokens + 1))
        weights = np.ones(tokens, np.float32)
        found = [Datum(row[:-1], {"target_tokens": row[1:], "weights": weights}) for row in ids]
        return PassRequest("", 1, "cross_entropy", found)

    asked = [(tenant, request()) for _ in range(requests) for tenant in range(2)]

    def compute(mixed: bool) -> tuple[float, list[PassResult], torch.Tensor, int]:
        runs = [base.new_adapter(AdapterSpec(16, seed)) for seed in (1, 2)]
        for run in runs:
            for _, b in run.matrices.values():
                torch.nn.init.normal_(b, std=0.02, generator=torch.Generator().manual_seed(run.shape.rank))
        taken = []
        for _ in range(rounds + 1):
            for run in runs:
                run.optimizer.zero_grad(set_to_none=True)
            began = time.process_time()
            if mixed:
                found = base.run_together([base.work(runs[tenant], each) for tenant, each in asked])
            else:
                found = [base.run_pass(runs[tenant], each) for tenant, each in asked]
            taken.append(time.process_time() - began)
        gradient = torch.cat([p.grad.flatten() for run in runs for p in run.parameters() if p.grad is not None])
        held = sum(4 * p.nbytes for p in runs[0].parameters())  # weights, gradients, two moments
        return len(asked) * data * tokens / min(taken[1:]), found, gradient, held

    separate, plain, whole, held = compute(mixed=False)
    mixed, together, found, _ = compute(mixed=True)
    results = zip(together, plain, strict=True)
    pairs = [pair for ours, theirs in results for pair in zip(ours.logprobs, theirs.logprobs, strict=True)]
    weights = sum(parameter.nbytes for parameter in base.model.parameters() if not parameter.requires_grad)
    difference = max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs)
    distance = float((found - whole).norm() / whole.norm())
    return Tenants(separate, mixed, difference, distance, (weights + 2 * held) / (weights + held))


def measure_policies(folder: Path, rank: int = 16) -> float:
    """Return the bytes that the trainers of two policies of a run hold at most, over one's.

    They are of weights, gradients and optimizer state, counted at each one's update: the base is held once, and a
    trainer has gradients in its own step alone (`lora.tenants=separate`).
    """
    lora, config = LoraConfig(rank=rank), TorchConfig(device="cpu")
    first, second = (TorchTrainer(folder, config, AlgoConfig(), seed=seed, lora=lora) for seed in (1, 2))
    if not second.share_base(first):
        raise RuntimeError("the trainers of two policies have a base each")
    vocabulary = first.model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    groups = [Group("g", Task(id="t"), workload(random.Random(0), vocabulary, samples=2, prompt=16, turns=1, turn=4))]
    forests = pack(groups, first.algorithm.credit(groups), 512)

    def peak(step: TorchTrainer, held: Sequence[TorchTrainer]) -> int:
        found = []
        hook = step.optimizer.adam.register_step_post_hook(lambda *_: found.append(sum(map(len, _held(held)))))
        step.step(forests)
        hook.remove()
        return max(found)

    alone = peak(first, [first])
    both = max(peak(step, [first, second]) for step in (second, first))
    first.close()
    second.close()
    return both / alone


def _held(trainers: Sequence[TorchTrainer]) -> Iterator[range]:
    """The places of the bytes of weights, gradients and optimizer state; those of shared ones once."""
    found: dict[int, range] = {}
    for trainer in trainers:
        weights = list(trainer.model.parameters())
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        states = [t for each in trainer.optimizer.adam.state.values() for t in each.values() if torch.is_tensor(t)]
        for tensor in (*weights, *gradients, *states):
            found[tensor.data_ptr()] = range(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)
    yield from found.values()


def compare_tenants(folder: Path, rounds: int) -> None:
    """Print what two tenants cost, with many small requests and with one request of as many data each."""
    base = SharedBase(folder, TorchConfig(device="cpu", token_budget=4096))
    for requests, data in ((16, 1), (1, 16)):
        cost = measure_tenants(base, requests, data, rounds)
        print(f"two tenants, {requests} requests of {data} x 64 tokens each", end=": ")
        print(f"{cost.separate:.0f} tokens a processor second", end=", ")
        print(f"mixed {cost.mixed / cost.separate:.2f} times as many; {cost.logprob:.1e} nats apart", end=", ")
        print(f"gradients {cost.gradient:.1e}; {cost.held:.3f} of one tenant's bytes")
    base.close()
    print(f"two policies of a run hold {measure_policies(folder):.3f} of one's bytes")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--tenants", action="store_true")
    parser.add_argument("--peaks", type=int, nargs="*", default=(), metavar="BUDGET")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, nargs="*", default=(1, 16))
    given = parser.parse_args(arguments)
    print(machine())
    with tempfile.TemporaryDirectory() as scratch:
        LlamaForCausalLM(LlamaConfig(**(SMALL if given.small else SMOLLM2))).save_pretrained(scratch)
        if given.peaks:
            compare_peaks(Path(scratch), given.ranks, given.peaks)
            return
        if given.tenants or given.small:
            compare_tenants(Path(scratch), given.rounds)
        if given.tenants:
            return
        whole = measure(Path(scratch), 0, given.rounds)
        print(f"whole: {whole.seconds:.2f} processor seconds a step, {whole.held:,} bytes held", end=", ")
        print(f"{whole.moved:,} bytes published")
        for rank in given.ranks:
            cost = measure(Path(scratch), rank, given.rounds)
            seconds, held = cost.seconds / whole.seconds, cost.held / whole.held
            print(f"rank {rank}: {seconds:.2f} of the seconds, {held:.3f} of the bytes held", end=", ")
            print(f"{whole.moved / cost.moved:.1f} times fewer bytes published ({cost.moved:,})")


if __name__ == "__main__":
    main()
