"""What workers do for the tests of the trainer: functions of a rank, in a world that is set up."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from agentrl.config import AlgoConfig, LoraConfig, TrainerConfig
from agentrl.errors import InvalidInput
from agentrl.train.algorithms.objective import empty_sums
from agentrl.train.forest.forest import Forest, sequence_count, token_counts
from agentrl.train.trainers.megatron.layout import ParallelLayout
from agentrl.train.trainers.megatron.rank import Rank
from agentrl.train.trainers.megatron.settings import MegatronConfig
from agentrl.train.trainers.ranks.balance import Share
from agentrl.train.trainers.ranks.joined import Entry, per_token
from agentrl.train.trainers.teachers.divergence import VocabularyHead
from tests.train.backends.megatron.batches import head_of

Answer = dict[str, Any] | None


def answer(found: dict[str, Any]) -> Answer:
    """What rank 0 says, and nobody else."""
    return found if dist.get_rank() == 0 else None


def share(rank: Rank, forests: Sequence[Forest]) -> Share:
    """A rank's share of a batch that all ranks have."""
    return rank.division().shares(forests)[dist.get_rank()]


def tokens(forests: Sequence[Forest], entries: list[Entry] | None) -> list[Tensor] | None:
    """[T] of each forest, on rank 0."""
    return None if entries is None else per_token(forests, entries)


def logprobs(rank: Rank, forests: Sequence[Forest]) -> list[Tensor] | None:
    """Log-probabilities of a batch, on rank 0."""
    return tokens(forests, rank.logprobs(share(rank, forests)))


def step(rank: Rank, forests: Sequence[Forest]) -> dict[str, float] | None:
    """A step of all ranks, as their trainer has them take it."""
    rank.algorithm.mark(forests)
    trained = [forest for forest in forests if forest.trained]
    read = share(rank, trained[:1]) if rank.algorithm.reads_joint_paths else None
    row = rank.step(share(rank, trained), None, read)
    return None if row is None else row | token_counts(forests)


def total(value: float) -> float:
    """The sum over ranks."""
    everyone: list[float] = [0.0] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return sum(everyone)


def gradients(
    folder: str, forests: Sequence[Forest], config: TrainerConfig, layout: ParallelLayout, algo: AlgoConfig
) -> Answer:
    """Loss, log-probabilities and gradients (by Hugging Face name) of a batch."""
    return learned(Rank(folder, config, layout, algo), forests)


def taught(
    folder: str,
    forests: Sequence[Forest],
    head: VocabularyHead,
    config: TrainerConfig,
    layout: ParallelLayout,
    algo: AlgoConfig,
) -> Answer:
    """`gradients` of a student whose teacher has this head."""
    rank = Rank(folder, config, layout, algo)
    rank.set_teacher(head)
    return learned(rank, forests)


def learned(rank: Rank, forests: Sequence[Forest]) -> Answer:
    """See `gradients`."""
    logps = logprobs(rank, forests)
    micros = rank.prepare(share(rank, forests))
    if rank.algorithm.sequence is not None:
        rank.sums = empty_sums(rank.algorithm, sequence_count(forests))
        rank.sum_sequences(micros, rank.sums)
    loss = rank.backward(micros)
    counted = total(loss if rank.is_reporting_rank else 0.0)
    return answer({"loss": counted, "gradients": rank.gradients(), "logps": logps})


def adapter(
    folder: str,
    forests: Sequence[Forest],
    lora: LoraConfig,
    config: TrainerConfig,
    layout: ParallelLayout,
    algo: AlgoConfig,
) -> Answer:
    """Loss, log-probabilities and an adapter's gradients of a batch; and what a rank hands out, new and merged."""
    new = Rank(folder, config, layout, algo, lora=LoraConfig(rank=3)).parts()
    rank = Rank(folder, config, layout, algo, lora=lora)
    weights = {name: tensor.clone() for name, tensor in rank.weights()}
    logps = logprobs(rank, forests)
    loss = rank.backward(rank.prepare(share(rank, forests)))
    counted = total(loss if rank.is_reporting_rank else 0.0)
    found = {"loss": counted, "logps": logps, "gradients": rank.gradients(), "weights": weights, "new": new}
    if lora.adapter is not None:
        rank.write_adapter(str(Path(lora.adapter).with_name("ours")))
    rank.begin(algo, 1, whole=True)  # merged in the ranks' own shards
    return answer(found | {"merged": {name: tensor.clone() for name, tensor in rank.weights()}})


def family(
    folder: str, forests: Sequence[Forest], config: TrainerConfig, layout: ParallelLayout, algo: AlgoConfig
) -> Answer:
    """Log-probabilities and gradients of a batch; and the weights as they were loaded."""
    rank = Rank(folder, config, layout, algo)
    weights = {name: tensor.clone() for name, tensor in rank.weights()}
    logps = logprobs(rank, forests)
    rank.backward(rank.prepare(share(rank, forests)))
    return answer({"logps": logps, "gradients": rank.gradients(), "weights": weights})


def criticism(
    folder: str,
    forests: Sequence[Forest],
    row: Tensor,
    start: float,
    config: TrainerConfig,
    layout: ParallelLayout,
    algo: AlgoConfig,
) -> Answer:
    """Loss, values and gradients of a batch with a critic; and what its updates on the batch make of its head."""
    rank = Rank(folder, config, layout, algo)
    assert rank.critic is not None
    rank.critic.head.weight.data.copy_(row)
    values = tokens(forests, rank.values(share(rank, forests), start))
    micros = rank.prepare(share(rank, forests))
    loss = rank.backward(micros)
    counted = total(loss if rank.is_reporting_rank else 0.0)
    found = rank.gradients()
    rank.fit(rank.critic, micros)
    return answer({"loss": counted, "gradients": found, "values": values, "critic": critics(rank)})


def steps(
    folder: str, batches: Sequence[Sequence[Forest]], config: TrainerConfig, layout: ParallelLayout, algo: AlgoConfig
) -> Answer:
    """Metrics of each step, and the weights after the last."""
    rank = Rank(folder, config, layout, algo, total_steps=len(batches))
    rows = [step(rank, forests) for forests in batches]
    weights = {name: tensor.clone() for name, tensor in rank.weights()}
    return answer({"rows": rows, "weights": weights, "critic": critics(rank)})


def memory(
    folder: str, forests: Sequence[Forest], config: TrainerConfig, layout: ParallelLayout, algo: AlgoConfig
) -> Answer:
    """Bytes of the weights, gradients and optimizer state of each rank after a step, as storages of its tensors."""
    rank = Rank(folder, config, layout, algo)
    step(rank, forests)
    own: dict[str, dict[int, int]] = {"weights": {}, "gradients": {}, "optimizer": {}}
    weights = [parameter for model in rank.models for parameter in model.parameters()]
    parts = getattr(rank.optimizer.inner, "chained_optimizers", [rank.optimizer.inner])
    groups = [group["params"] for part in parts for group in part.optimizer.param_groups]
    states = [state.values() for part in parts for state in part.optimizer.state.values()]
    counted: set[int] = set()
    for kind, tensors in (
        ("weights", weights),
        ("gradients", [parameter.main_grad for parameter in weights]),
        ("optimizer", [each for several in (*groups, *states) for each in several if torch.is_tensor(each)]),
    ):
        for storage in (tensor.untyped_storage() for tensor in tensors):
            if storage.data_ptr() not in counted:
                own[kind][storage.data_ptr()] = storage.nbytes()
        counted |= own[kind].keys()
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, {kind: sum(sizes.values()) for kind, sizes in own.items()})
    return answer({"ranks": everyone})


def critics(rank: Rank) -> list[Tensor]:
    """The critic's row and bias, from every rank."""
    return everyones([] if rank.critic is None else [head_of(rank.critic)])


def everyones(own: list[Tensor]) -> list[Tensor]:
    """All ranks' tensors."""
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, own)
    return [tensor for each in told for tensor in each]


def head(
    states: Tensor, weight: Tensor, targets: Tensor, temperature: Tensor, vocabulary: int, chunk: int
) -> tuple[Tensor, ...]:
    """Log-probabilities, entropy, and the gradients of a mixture of both; the head's are this rank's part."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.mappings import copy_to_tensor_model_parallel_region

    from agentrl.train.trainers.head import vocabulary_logps

    ranks, rank = dist.get_world_size(), dist.get_rank()
    part = weight.chunk(ranks)[rank].clone().requires_grad_()
    states = states.clone().requires_grad_()
    logp, entropy = vocabulary_logps(
        copy_to_tensor_model_parallel_region(states),
        part,
        targets,
        temperature,
        group=parallel_state.get_tensor_model_parallel_group(),
        vocabulary=vocabulary,
        chunk_elements=chunk,
    )
    (logp - 0.3 * entropy).sum().backward()
    assert states.grad is not None
    assert part.grad is not None
    return logp.detach(), entropy.detach(), states.grad, part.grad


def save(
    folder: str,
    batches: Sequence[Sequence[Forest]],
    path: str,
    config: TrainerConfig,
    layout: ParallelLayout,
    algo: AlgoConfig,
) -> Answer:
    """Learn from the first half of the batches, save, and learn from the rest: metrics of the second half."""
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # writers are children
    rank = Rank(folder, config, layout, algo, total_steps=len(batches))
    half = len(batches) // 2
    for forests in batches[:half]:
        step(rank, forests)
    rank.save(path)
    if config.async_save and dist.get_rank() == 0:  # as a run does, once its trainer has saved
        os.rename(os.path.dirname(path), os.path.dirname(path) + "-moved")
    rows = [step(rank, forests) for forests in batches[half:]]
    rank.finish_saving()
    return answer({"rows": rows, "version": rank.version, "critic": critics(rank)})


def resume(
    folder: str,
    batches: Sequence[Sequence[Forest]],
    path: str,
    config: TrainerConfig,
    layout: ParallelLayout,
    algo: AlgoConfig,
) -> Answer:
    """Go on from a checkpoint with the second half of the batches."""
    rank = Rank(folder, config, layout, algo, total_steps=len(batches))
    version = rank.load(path)
    rows = [step(rank, forests) for forests in batches[len(batches) // 2 :]]
    weights = {name: tensor.clone() for name, tensor in rank.weights()}
    return answer({"rows": rows, "version": version, "weights": weights, "critic": critics(rank)})


def resumptions(
    jobs: Sequence[tuple[str, str | None, str | None, MegatronConfig]],
    batches: Sequence[Sequence[Forest]],
    layout: ParallelLayout,
    algo: AlgoConfig,
) -> Any:
    """The weights after two steps of each job, that saves or goes on after the first; or why it was refused.

    Args:
        jobs: a model, the checkpoint to go on from, the path to save to, and settings of this layout.
        batches: two.
        layout: of all jobs.
        algo: of all jobs.
    """
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # Megatron's manager
    found: list[Any] = []
    for folder, origin, target, config in jobs:
        rank = Rank(folder, config, layout, algo, total_steps=len(batches))
        try:
            if origin is None:
                step(rank, batches[0])
            else:
                rank.load(origin)
            problem = None
        except InvalidInput as error:
            problem = str(error)
        problem = next((told for told in rank.all_gather(problem) if told), None)
        if problem is None:
            if target is not None:
                rank.save(target)
            step(rank, batches[1])
            found.append({name: tensor.clone() for name, tensor in rank.weights()})
        else:
            found.append(problem)
    return found if dist.get_rank() == 0 else None
