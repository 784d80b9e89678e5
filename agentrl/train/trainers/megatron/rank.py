"""One rank of the trainer: its chunks of the model, its shard of every forest, its optimizer.

All ranks run the same calls in the same order, each with its data-parallel share of the forests; its part of them
follows from its position in the layout. A call's result is complete on rank 0 and None elsewhere.

The order of things follows the torch trainer, which is this one's reference: reference log-probabilities first,
then `epochs` passes over the micro-batches with one update each, the first of which is the old policy. The
reference's weights are kept in the CPU's memory and copied in for its pass: no second model, no second set of
processes. With `reference=copy` they stay on the device, and the parameters' tensors are exchanged.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from agentrl.config import AlgoConfig, LoraConfig
from agentrl.errors import InvalidInput
from agentrl.models.adapters import SavedAdapter
from agentrl.train.algorithms import algorithm_settings, make_algorithm
from agentrl.train.algorithms.objective import Meter, add_sums
from agentrl.train.forest.forest import Rows
from agentrl.train.trainers.copies import WeightCopy
from agentrl.train.trainers.critic import ValueModel
from agentrl.train.trainers.learner import StepLearner
from agentrl.train.trainers.megatron import passes
from agentrl.train.trainers.megatron.adapter import AdapterCopy, RankAdapter
from agentrl.train.trainers.megatron.checkpoint import Checkpoints
from agentrl.train.trainers.megatron.chunks import chunks_of, sparse_layers, wrap_chunk
from agentrl.train.trainers.megatron.copies import RankWeightCopy
from agentrl.train.trainers.megatron.layout import ParallelLayout
from agentrl.train.trainers.megatron.micro import Micro, lengths, micro_batch
from agentrl.train.trainers.megatron.models import export, family_of, read_config
from agentrl.train.trainers.megatron.models.folder import write_weights
from agentrl.train.trainers.megatron.models.images import with_images
from agentrl.train.trainers.megatron.models.scores import prepare_scores
from agentrl.train.trainers.megatron.moe import Routers, metrics, recorded_experts
from agentrl.train.trainers.megatron.muon import Muon
from agentrl.train.trainers.megatron.parameters import rate_factors, with_vision_rate
from agentrl.train.trainers.megatron.settings import MegatronConfig
from agentrl.train.trainers.megatron.update import Update, device
from agentrl.train.trainers.optimizer import Optimizer
from agentrl.train.trainers.ranks.balance import Division, Share
from agentrl.train.trainers.ranks.joined import Entry, all_gather, join_results, sum_over_ranks
from agentrl.train.trainers.teachers.divergence import VocabularyHead


class Rank(StepLearner[Micro]):
    """A rank's learner; Megatron's parallel state must be initialised in the same layout."""

    def __init__(
        self,
        folder: str | Path,
        config: MegatronConfig,
        layout: ParallelLayout,
        algo: AlgoConfig | Mapping[str, Any],
        total_steps: int = 1,
        *,
        seed: int = 0,
        lora: LoraConfig | None = None,
    ) -> None:
        self.config, self.layout = config, layout
        algo = algo if isinstance(algo, AlgoConfig) else algorithm_settings(algo)
        hf = read_config(folder, config.family)
        self.family, self.width, drawn = with_images(family_of(hf, config.family), folder), int(hf.hidden_size), None
        if (head := make_algorithm(algo).needs.head) is not None:
            self.family, drawn = prepare_scores(self.family, hf, head, seed)
        self.at_target = head is not None
        self.models = chunks_of(folder, hf, self.family, config, layout, drawn)
        self.routers = Routers(self.models, config.moe, recompute=config.recompute == "full")
        self.sparse_layers = sparse_layers(self.models[0].config)
        self.control = dist.new_group(backend="gloo")
        self.adapter: RankAdapter | None = None
        if lora is not None and lora.active:
            self.adapter = RankAdapter(lora, seed, Path(folder), self.models, self.family, self.control)
        else:
            self._train_whole()
        self.checkpoints = Checkpoints(self)
        self.version = 0
        self.reference: RankWeightCopy | WeightCopy | None = None
        self.average: RankWeightCopy | WeightCopy | None = None
        self.begin(algo, total_steps)

    # ------------------------------------------------------------------------------------ learning

    def _train_whole(self) -> None:
        for parameter in (p for model in self.models for p in model.parameters()):
            parameter.requires_grad_(True)
        self.factors = rate_factors(self.models, self.family, self.config)
        self.chunks = [wrap_chunk(m, self.layout, shares_state=self.config.shares_state) for m in self.models]

    def begin(self, algo: AlgoConfig | Mapping[str, Any], total_steps: int, whole: bool = False) -> None:
        """Begin a phase; see `Trainer.begin`. A critic is reset.

        Args:
            algo: the settings, or their fields where their class may be unknown in this process.
            total_steps: the phase's length, for the schedule.
            whole: see `AdapterTrainer`.
        """
        self.start_phase(algo if isinstance(algo, AlgoConfig) else algorithm_settings(algo))
        reduce = functools.partial(sum_over_ranks, group=self.control)
        self.critic = None
        if self.algorithm.needs.critic:
            self.critic = ValueModel(self.width, self.algorithm.critic_config, total_steps, device(), reduce=reduce)
        self.optimizer: Update | Optimizer = self._optimizer(total_steps, whole=whole)
        averages = self.config.average_decay is not None
        if self.adapter is not None and self.adapter.attached:
            self.reference = AdapterCopy(self.adapter) if self.keeps_reference else None
            self.average = AdapterCopy(self.adapter) if averages else None
            return
        on_device = self.config.reference == "copy"
        self.reference = RankWeightCopy(self.models, on_device=on_device) if self.keeps_reference else None
        self.average = RankWeightCopy(self.models, on_device=False) if averages else None

    def _optimizer(self, total_steps: int, *, whole: bool) -> Update | Optimizer:
        if self.adapter is not None:
            self.adapter.begin(whole=whole)
            if not whole:
                self.chunks = self.adapter.wrap(self.layout)
                return self.adapter.optimizer(self.config, self.algo, total_steps)
            self._train_whole()
        factors = with_vision_rate(self.factors, self.models, self.family, self.config, self.algo.lr)
        muon = Muon(self.models, self.family, factors) if self.config.optimizer == "muon" else None
        update = Update(self.chunks, self.config, self.algo, total_steps, factors, muon)
        update.clear()
        return update

    def set_teacher(self, head: VocabularyHead) -> None:
        """See `Distilling.set_teacher`; this rank keeps the part that its own head has, if it has one."""
        ends = [model for model in self.models if model.post_process]
        self.teacher = head.beside(passes.head_of(ends[0])) if ends else None

    def step(
        self, share: Share, state: Mapping[str, Any] | None = None, read: Share | None = None
    ) -> dict[str, float] | None:
        """Learn from a batch; see `JointCritic.step`. The sizes of the batch are not among the metrics.

        Args:
            share: this rank's part of the batch.
            state: of the run's algorithm.
            read: this rank's part of what a critic of joint paths learns from.
        """
        self.begin_step(state)
        micros = self.prepare(share)
        learned = self.learn(micros, share.sequences, [] if read is None else self.prepare(read))
        if self.average is not None and self.config.average_decay is not None:
            self.average.move_towards(self.config.average_decay)
        counted = self.gather((self.is_reporting_rank, learned, self.routers.counts()))
        if counted is None:
            return None
        together = join_results([(counts, part) for counts, part, _ in counted])
        sharing = self.layout.tensor * self.layout.context
        routed = [routers for _, _, routers in counted]
        return together.metrics() | metrics(routed, len(micros) * learned.epochs, self.layout.data, sharing)

    def known_sums(self, batches: Sequence[Micro]) -> bool:
        return all(self.all_gather(super().known_sums(batches)))

    def holds_sequences(self, batches: Sequence[Micro]) -> bool:
        """Return false: ranks of a context hold parts of a forest, and only a pipeline's last ones its rows."""
        return False

    def score_reference(self, batches: Sequence[Micro]) -> None:
        with self.require_reference().exchanged():
            self._score(batches, "ref_logp")

    def score_old(self, batches: Sequence[Micro], meter: Meter) -> None:
        def use(micro: Micro, heads: passes.Heads) -> Tensor:
            logp, _ = heads.logps()
            self.keep_old(logp.detach(), micro.rows, meter)
            return logp.sum()

        passes.run(self.chunks, batches, use, learn=False, before=self.routers.before)

    def sum_sequences(self, batches: Sequence[Micro], sums: Tensor) -> None:
        def use(micro: Micro, heads: passes.Heads) -> Tensor:
            logp, _ = heads.logps()
            if self.is_reporting_rank:
                add_sums(self.algorithm, sums, logp, micro.rows, self.version)
            return logp.sum()

        passes.run(self.chunks, batches, use, learn=False, before=self.routers.before)
        dist.all_reduce(sums, group=self.control)

    def accumulate(self, batches: Sequence[Micro], meter: Meter, *, first: bool) -> float:
        return self.backward(batches, meter, first=first)

    def fit(self, critic: ValueModel, batches: Sequence[Micro]) -> Meter:
        read: dict[int, list[tuple[Tensor, Rows]]] = {}

        def use(micro: Micro, heads: passes.Heads) -> Tensor:
            read[id(micro)] = [heads.states()]
            return heads.out.sum()

        passes.run(self.chunks, batches, use, learn=False, before=self.routers.before)
        return critic.fit(self.value_updates(batches, lambda micro: read.get(id(micro), [])))

    def division(self) -> Division:
        """Return how batches are divided over ranks."""
        multiple = self.layout.pipeline if self.layout.interleave > 1 else 1
        return Division(tuple(self.all_gather(parallel_state.get_data_parallel_rank())), self.width, multiple)

    def prepare(self, share: Share) -> list[Micro]:
        """Return this rank's micro-batches of its share."""
        if not share.works:
            return []
        layout, gpu = self.layout, device().type == "cuda"
        together = layout.expert > 1 and self.models[0].config.moe_token_dispatcher_type == "allgather"
        updates = any(work.forest.updates for work in share.works)
        mine, context = parallel_state.get_data_parallel_rank(), parallel_state.get_context_parallel_rank()
        padded = lengths(share.lengths, layout, gpu=gpu, together=together, updates=updates)[mine]
        micros = [
            micro_batch(work, length, layout, context, device(), at_target=self.at_target)
            for work, length in zip(share.works, padded, strict=True)
        ]
        if self.config.moe.routing_replay == "rollout":
            for micro in micros:
                self._replay_recorded(micro)
        return micros

    def _replay_recorded(self, micro: Micro) -> None:
        experts = micro.work.forest.routed_experts
        if experts is not None:
            mine = micro.share.mine
            micro.routed_experts = recorded_experts(experts, mine, self.sparse_layers, sequence=self.layout.sequence)

    def backward(self, micros: Sequence[Micro], meter: Meter | None = None, *, first: bool = True) -> float:
        """Accumulate a batch's gradient; returns this rank's part of the loss."""
        total = 0.0

        def use(micro: Micro, heads: passes.Heads) -> Tensor:
            nonlocal total
            logp, entropy = heads.logps()
            reads = self.critic is not None and not self.algorithm.reads_joint_paths
            values = heads.values(self.critic.head) if reads and self.critic is not None else None
            divergence = heads.divergence(self.algorithm.divergence, self.teacher)
            loss = self.loss(logp, entropy, micro.rows, values, meter, first=first, divergence=divergence)
            total += float(loss.detach())
            return loss

        passes.run(self.chunks, micros, use, learn=True, before=self.routers.before)
        return total

    def logprobs(self, share: Share, reference: bool = False) -> list[Entry] | None:
        """Log-probabilities of the batch's trained tokens; see `Trainer.logprobs`."""
        weights = self.require_reference().exchanged() if reference else contextlib.nullcontext()
        micros = self.prepare(share)
        with weights:
            self._score(micros, "ref_logp")
        return self._entries(micros, "ref_logp")

    def values(self, share: Share, start: float = 0.0) -> list[Entry] | None:
        """The critic's values of the batch's trained tokens; see `Critic.values`."""
        self.require_critic().start(start)
        micros = self.prepare(share)
        self._score(micros, "value")
        return self._entries(micros, "value")

    def layer_outputs(self, share: Share, tokens: int) -> list[Tensor] | None:
        return passes.layer_outputs(self, share, tokens)

    def _score(self, micros: Sequence[Micro], into: Literal["ref_logp", "value"]) -> None:
        def use(micro: Micro, heads: passes.Heads) -> Tensor:
            scores = heads.values(self.require_critic().head) if into == "value" else heads.logps()[0]
            setattr(micro.rows, into, scores.detach())
            return scores.sum()

        passes.run(self.chunks, micros, use, learn=False, before=self.routers.before)

    def _entries(self, micros: Sequence[Micro], name: str) -> list[Entry] | None:
        """The entries that `_score` wrote, of all ranks, on rank 0."""
        found = [
            (m.work.origin, (m.rows.target + m.work.offset).cpu(), getattr(m.rows, name).cpu())
            for m in micros
            if self.is_reporting_rank
        ]
        everyone = self.gather(found)
        return None if everyone is None else [entry for rank in everyone for entry in rank]

    # ------------------------------------------------------------------------------------- weights

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, tensor) pairs on rank 0; every rank must go through to the end."""
        base = export(self.models, self.family, to=0, dtype=dtype)
        return base if self.adapter is None else self.adapter.merged(base)

    def parts(self) -> dict[str, SavedAdapter]:
        """Return the smaller parts, on rank 0; see `Trainer.weights`."""
        return {} if self.adapter is None else self.adapter.parts()

    def base_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights without an adapter's products, on rank 0."""
        return export(self.models, self.family, to=0)

    def _require_adapter(self) -> RankAdapter:
        if self.adapter is None:
            raise InvalidInput("the trainer has no adapter: lora.rank is 0")
        return self.adapter

    def set_base(self, folder: str) -> None:
        self._require_adapter().lora.set_source(Path(folder))

    def write_adapter(self, folder: str) -> bool:
        """Write an adapter's folder on rank 0; returns whether its base is another than the trainer's folder."""
        return self._require_adapter().write(Path(folder))

    def averaged_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the averaged weights; the policy has its weights back at the end."""
        if self.average is None:
            raise InvalidInput("the trainer keeps no average of its weights: trainer.average_decay is none")
        with self.average.exchanged():
            yield from self.weights()

    def write(self, folder: str, method: str) -> dict[str, int] | None:
        """Write what `method` yields, on rank 0; see `write_weights`. All ranks see the folder, or are on one node."""
        weights: Iterator[tuple[str, Tensor]] = getattr(self, method)()
        if dist.get_rank() == 0:
            return write_weights(Path(folder), weights)
        for _ in weights:
            pass
        return None

    def save(self, path: str) -> None:
        """Write a checkpoint; see `Checkpoints.save`."""
        self.checkpoints.save(Path(path))

    def load(self, path: str) -> int:
        """Load a checkpoint; see `Checkpoints.load`."""
        return self.checkpoints.load(Path(path))

    def release(self) -> None:
        torch.cuda.empty_cache()

    def finish_saving(self) -> None:
        """Wait for a checkpoint that is still being written."""
        self.checkpoints.finish()

    def forget(self) -> None:
        """Free what would outlive the rank, before another is built in this process."""
        self.finish_saving()
        dist.destroy_process_group(self.control)

    def gradients(self) -> dict[str, Tensor] | None:
        """The gradients by Hugging Face name, on rank 0, before clipping; for tests and tools.

        Under the distributed optimizer each rank has the sum of its own part only: turn that off.
        """
        if isinstance(self.optimizer, Optimizer):
            return self._require_adapter().gradients()
        self.optimizer.inner.prepare_grads()
        return dict(export(self.models, self.family, to=0, read=lambda p: getattr(p, "main_grad", None))) or None

    # ------------------------------------------------------------------------------------- metrics

    @property
    def is_reporting_rank(self) -> bool:
        """True on the rank that reports: the last stage has the losses, the same on all its tensor ranks."""
        last: bool = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
        return last and parallel_state.get_tensor_model_parallel_rank() == 0

    def gather(self, value: Any) -> list[Any] | None:
        """Return every rank's value, on rank 0."""
        everyone: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(value, everyone, 0, group=self.control)
        return everyone

    def all_gather(self, value: Any) -> list[Any]:
        """Return every rank's value, on every rank."""
        return all_gather(value, self.control)
