"""An adapter against the whole model, on the same forests: `OMP_NUM_THREADS=1 python -m benchmarks.lora [--small]`.

A random model of SmolLM2-135M's shape in float32 takes steps (forward, backward, optimizer) on a group's forest, whole
and with adapters of rank 1 and 16. One trainer at a time is in memory. Times are processor seconds, the least of a few
steps, since the machine may be busy: with several threads they count those that wait for each other. Bytes are of
weights, of the gradients and the optimizer state of what is trained, and of the tensors that a publication moves.

Then two tenants of a training server ask for passes over data of 64 tokens: `separate`, one request after the other,
and `mixed`, as many in a pass as wait (`passes`). Their bytes are counted at their updates, where both have gradients,
and those of two policies of a run (`lora.tenants=separate`) at theirs. `--small` takes a model of three million
weights; `--tenants` measures tenants alone, on the model of SmolLM2's shape too, `--held` their bytes alone, and
`--peaks BUDGET …` the peak resident memory of processes that train on forests of so many tokens.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import re
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agentrl.config import AlgoConfig, LoraConfig
from agentrl.overrides import validate
from agentrl.rollout.weights.buckets import ADAPTER, Weights
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import pack
from agentrl.train.server.config import ServeTrainingConfig
from agentrl.train.server.execution import RunExecutor
from agentrl.train.server.learner import AdapterSpec, PassResult, SharedBase
from agentrl.train.server.messages import Datum, PassRequest
from agentrl.train.server.served_run import RunInfo, Work
from agentrl.train.server.tenants import Tenant
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
    """

    separate: float
    mixed: float
    logprob: float
    gradient: float


def random_data(base: SharedBase, draw: np.random.Generator, count: int, tokens: int) -> PassRequest:
    """Return a request for a pass over so many data of so many tokens."""
    ids = draw.integers(0, base.vocabulary, (count, tokens + 1))
    weights = np.ones(tokens, np.float32)
    found = [Datum(row[:-1], {"target_tokens": row[1:], "weights": weights}) for row in ids]
    return PassRequest("", 1, "cross_entropy", found)


def measure_tenants(base: SharedBase, requests: int, data: int, rounds: int, tokens: int = 64) -> Tenants:
    """Compute passes of two tenants with adapters of rank 16, each of so many requests with so many data."""
    draw = np.random.default_rng(0)
    asked = [(tenant, random_data(base, draw, data, tokens)) for _ in range(requests) for tenant in range(2)]

    def compute(mixed: bool) -> tuple[float, list[PassResult], torch.Tensor]:
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
        return len(asked) * data * tokens / min(taken[1:]), found, gradient

    separate, plain, whole = compute(mixed=False)
    mixed, together, found = compute(mixed=True)
    results = zip(together, plain, strict=True)
    pairs = [pair for ours, theirs in results for pair in zip(ours.logprobs, theirs.logprobs, strict=True)]
    difference = max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs)
    return Tenants(separate, mixed, difference, float((found - whole).norm() / whole.norm()))


def measure_served(base: SharedBase, folder: Path, rank: int = 16) -> float:
    """Return the bytes that a server holds at most with runs of two tenants, over those with one's.

    They are of weights, gradients and optimizer state, counted at each update, where all runs have gradients.
    """
    executor = RunExecutor(base, validate({"model": str(base.source)}, ServeTrainingConfig))
    draw = np.random.default_rng(0)

    def peak(count: int) -> int:
        tenants = [Tenant(f"tenant-{n}", folder / f"{n}-of-{count}") for n in range(count)]
        runs = [tenant.create_run(RunInfo("run", "session", "base", rank, seed=n)) for n, tenant in enumerate(tenants)]
        found: list[int] = []

        def measure(*_: object) -> None:
            adapters = [run.adapter for run in runs if run.adapter is not None]
            weights = [*base.model.parameters(), *(p for adapter in adapters for p in adapter.parameters())]
            found.append(_count_bytes(weights, [adapter.optimizer for adapter in adapters]))

        def compute(number: int, kind: str) -> None:
            for tenant, run in zip(tenants, runs, strict=True):
                run.accept(number, Work(kind, b"{}"))
                executor.execute(tenant, run)
                answer = run.answer(number)
                if answer is None or answer.failed:
                    raise RuntimeError(f"{kind} failed: {run.broken or answer}")

        compute(0, "create_model")
        for run in runs:
            assert run.adapter is not None
            run.adapter.optimizer.register_step_post_hook(measure)
        for number in (1, 2):
            for run in runs:
                assert run.adapter is not None
                base.run_pass(run.adapter, random_data(base, draw, 1, 16))
            compute(number, "optim_step")
        return max(found)

    alone, both = peak(1), peak(2)
    return both / alone


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
        weights = [weight for trainer in held for weight in trainer.model.parameters()]
        optimizers = [trainer.optimizer.adam for trainer in held]
        hook = step.optimizer.adam.register_step_post_hook(lambda *_: found.append(_count_bytes(weights, optimizers)))
        step.step(forests)
        hook.remove()
        return max(found)

    alone = peak(first, [first])
    both = max(peak(step, [first, second]) for step in (second, first))
    first.close()
    second.close()
    return both / alone


def _count_bytes(weights: Iterable[torch.Tensor], optimizers: Iterable[torch.optim.Optimizer]) -> int:
    """The bytes of weights, their gradients and optimizers' state; those of shared tensors once."""
    tensors = [tensor for weight in weights for tensor in (weight, weight.grad) if tensor is not None]
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    tensors += [tensor for state in states for tensor in state.values() if torch.is_tensor(tensor)]
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())


def compare_tenants(folder: Path, rounds: int) -> None:
    """Print what two tenants cost, with many small requests and with one of as many data each; in 0 rounds, bytes."""
    base = SharedBase(folder, TorchConfig(device="cpu", token_budget=4096))
    for requests, data in ((16, 1), (1, 16)) if rounds else ():
        cost = measure_tenants(base, requests, data, rounds)
        print(f"two tenants, {requests} requests of {data} x 64 tokens each", end=": ")
        print(f"{cost.separate:.0f} tokens a processor second", end=", ")
        print(f"mixed {cost.mixed / cost.separate:.2f} times as many; {cost.logprob:.1e} nats apart", end=", ")
        print(f"gradients {cost.gradient:.1e}")
    with tempfile.TemporaryDirectory() as runs:
        print(f"two tenants of a server hold {measure_served(base, Path(runs)):.3f} of one's bytes")
    base.close()
    print(f"two policies of a run hold {measure_policies(folder):.3f} of one's bytes")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--tenants", action="store_true")
    parser.add_argument("--held", action="store_true")
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
        if given.tenants or given.held or given.small:
            compare_tenants(Path(scratch), 0 if given.held else given.rounds)
        if given.tenants or given.held:
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
