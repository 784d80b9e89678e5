"""The torch trainer: a transformers model, forests through its attention interface, AdamW.

The model is whatever `AutoModelForCausalLM` loads, left as it is: no layer is replaced and no parameter is
held elsewhere, so that FSDP2 can shard it (`agentrl.train.trainers.fsdp`). Layers with a state follow the paths
(`state_schedule`). It runs in evaluation mode even while learning, because dropout would make the trainer's
log-probabilities differ from the engine's. Weights, gradients and optimizer state stay in float32; `dtype=bfloat16`
computes under autocast.

A step is in `agentrl.train.trainers.learner`. A critic and a reward model are kept apart from the model
(`agentrl.train.trainers.critic`, `reward_model`): they are not sent to engines or exported.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from agentrl import watchdog
from agentrl.common import cores
from agentrl.config import AlgoConfig, LoraConfig
from agentrl.errors import InvalidInput
from agentrl.models.adapters import SavedAdapter
from agentrl.models.devices import torch_device
from agentrl.models.folders import export_folder, read_side_files
from agentrl.models.mixers import set_plan
from agentrl.models.rope import fixed_angle_length
from agentrl.models.scoring import HEAD
from agentrl.models.untrained import Untrained
from agentrl.models.vision import language_of
from agentrl.rollout.engines.local.weights import names_in_files, single_experts
from agentrl.rollout.weights.buckets import ADAPTER
from agentrl.train.algorithms import make_algorithm
from agentrl.train.algorithms.objective import Meter, add_sums
from agentrl.train.forest.forest import Forest, Rows, sequence_count, token_counts
from agentrl.train.trainers.copies import WeightCopy
from agentrl.train.trainers.critic import ValueModel
from agentrl.train.trainers.head import Logits, read_scores, token_logps
from agentrl.train.trainers.learner import RankStepResult
from agentrl.train.trainers.lora import Lora, merge, merge_adapter
from agentrl.train.trainers.lora_quantised import WholeState
from agentrl.train.trainers.optimizer import Optimizer
from agentrl.train.trainers.parameters import trained_parameters
from agentrl.train.trainers.recompute import recompute_layers
from agentrl.train.trainers.reference import record_layer_outputs
from agentrl.train.trainers.reward_model import RewardModel
from agentrl.train.trainers.torch_trainer.batch import TorchBatch, before_head, computing, prepare_batch, trunk_of
from agentrl.train.trainers.torch_trainer.checkpoint import TorchCheckpoints
from agentrl.train.trainers.torch_trainer.distillation import Distilling
from agentrl.train.trainers.torch_trainer.scores import load_network
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.side_by_side import SideBySide
from agentrl.train.trainers.torch_trainer.tenants import BaseTenant

T = TypeVar("T")


class TorchTrainer(Distilling, BaseTenant, TorchCheckpoints):
    """The trainer of `trainer=torch`.

    Args:
        path: a Hugging Face folder.
        config: device, precision, token budget.
        algo: the first phase's algorithm.
        total_steps: the first phase's length, for the schedule.
        seed: of torch's generator, for models that sample, and of a new adapter.
        lora: the adapter that is trained in the model's place; None: there is none.
    """

    computes_supports = True
    processes = 1
    """The number of processes that share this machine's cores in computing the same steps."""
    reduce: Callable[[Sequence[Tensor]], None] | None = None
    """Sums over them the gradients of what each of them has whole: an adapter, a critic's head (`ValueModel`)."""

    def __init__(
        self,
        path: str | Path,
        config: TorchConfig | None = None,
        algo: AlgoConfig | None = None,
        *,
        total_steps: int = 1,
        seed: int = 0,
        lora: LoraConfig | None = None,
    ) -> None:
        self.config = config or TorchConfig()
        self.lora = Lora(lora, seed, Path(path)) if lora is not None and lora.active else None
        self.source = Path(path)
        self._side_files = read_side_files(self.source)  # now: the folder may be gone by the time of an export
        self._untrained = Untrained(self.source)
        self.device = torch.device(torch_device(self.config.device, "trainer.device"))
        torch.manual_seed(seed)
        self.seed, self.head = seed, make_algorithm(algo or AlgoConfig()).needs.head
        self.model = self.load_model().to(self.device).eval()
        self.files = names_in_files(self.model, self.source)
        if self.config.recompute == "full":
            recompute_layers(self.model)
        on_cpu = self.device.type == "cpu"
        share = cores.share(self.processes, self.source)
        self.threads = cores.choose_threads(self.config.threads, share) if on_cpu else None
        self.together = SideBySide.suited(self.model, self.source, self.config, self.processes) if on_cpu else None
        self.deterministic = on_cpu or torch.are_deterministic_algorithms_enabled()
        self.logits = Logits.of(self.model.config)
        self.longest = fixed_angle_length(self.model.config)
        self.version = 0
        self.reference: WeightCopy | None = None
        self.average: WeightCopy | None = None
        self.begin(algo or AlgoConfig(), total_steps)

    def load_model(self) -> nn.Module:
        return load_network(self.lora.source if self.lora else self.source, self.head, self.seed, self.lora)

    # ------------------------------------------------------------------------------------ learning

    def begin(self, algo: AlgoConfig, total_steps: int, *, whole: bool = False) -> None:
        """Begin a phase: a fresh optimizer and schedule; with a KL penalty, the current weights are its reference.

        A critic is reset; a trunk of its own is a copy of the current policy's, as a reward model is. See also
        `AdapterTrainer`.
        """
        self.start_phase(algo)
        assert self.algorithm.needs.head == self.head, "a phase can't have another head than the model"
        if self.lora is not None:
            self.lora.begin(self.model, whole=whole)
        reward = self.algorithm.reward_config if self.algorithm.needs.reward_model else None
        self.reward_model = RewardModel(self.model, reward, total_steps) if reward else None
        self.critic = self._new_critic(total_steps) if self.algorithm.needs.critic else None
        config, seen = self.config, (self.config.vision_lr or algo.lr) / algo.lr if algo.lr else 1.0
        weights = trained_parameters(self.model, config, optimizer=config.optimizer, vision=config.vision, seen=seen)
        self.optimizer: Optimizer = Optimizer(
            weights, algo, total_steps, offload=config.offload_optimizer, reduce=self.reduce
        )
        self.reference = WeightCopy(self.model) if self.keeps_reference else None
        self.average = WeightCopy(self.model) if self.config.average_decay is not None else None

    def _new_critic(self, total_steps: int) -> ValueModel:
        width = self.model.get_output_embeddings().weight.shape[1]  # type: ignore[operator]
        trunk = None
        algo = self.algorithm.critic_config
        if algo.value_trunk == "own":
            trunk = merge(copy.deepcopy(trunk_of(self.model)))
            trunk.requires_grad_(True)  # what the policy freezes, it learns
            trunk.zero_grad(set_to_none=True)
        return ValueModel(width, algo, total_steps, self.device, trunk, self.reduce)

    @computing
    def step(
        self, forests: Sequence[Forest], state: Mapping[str, Any] | None = None, value_forests: Sequence[Forest] = ()
    ) -> dict[str, float]:
        """Learn from a batch; see `JointCritic.step`. A batch without trained tokens changes no weight."""
        self.begin_step(state)
        self.algorithm.mark(forests)
        batches, read = ([b for b in map(self.prepare, each) if len(b.rows)] for each in (forests, value_forests))
        return self.metrics_of(batches, sequence_count(forests), read) | token_counts(forests)

    def metrics_of(self, batches: Sequence[TorchBatch], sequences: int, read: Sequence[TorchBatch]) -> dict[str, float]:
        """The metrics of `learn`, and of what follows the policy: a reward model, an average."""
        metrics = self.joined(self.learn(batches, sequences, read)).metrics()
        if self.reward_model is not None:
            metrics |= self._fit_rewards(self.reward_model, batches)
        if self.average is not None and self.config.average_decay is not None:
            self.average.move_towards(self.config.average_decay)
        return metrics

    def joined(self, learned: RankStepResult) -> RankStepResult:
        """Combine a step over all processes."""
        return learned

    def whole(self, compute: Callable[[], T]) -> T:
        """Compute with the model's weights; where they are sharded, they are gathered for it."""
        return compute()

    @torch.no_grad()
    def score_reference(self, batches: Sequence[TorchBatch]) -> None:
        with self.require_reference().exchanged():
            for batch in batches:
                batch.rows.ref_logp = self._score(batch)

    @torch.no_grad()
    def score_old(self, batches: Sequence[TorchBatch], meter: Meter) -> None:
        for batch in batches:
            self.keep_old(self._score(batch), batch.rows, meter)

    @torch.no_grad()
    def sum_sequences(self, batches: Sequence[TorchBatch], sums: Tensor) -> None:
        for batch in batches:
            add_sums(self.algorithm, sums, self._score(batch), batch.rows, self.version)

    def accumulate(self, batches: Sequence[TorchBatch], meter: Meter, *, first: bool) -> float:
        if self.mixed is not None:
            return self.mixed.accumulate(self, batches, functools.partial(self._loss_of, meter=meter, first=first))
        together = None if self.critic is not None or len(batches) < 2 else self.together
        if together is None or any(batch.images is not None for batch in batches):
            return sum(self.backward(batch, meter, first=first) for batch in batches)

        def loss_of(batch: TorchBatch, counted: Meter) -> Tensor:
            hidden = self.compute_hidden(trunk_of(self.model), batch)
            return self._loss_of(batch, hidden, meter=counted, first=first)

        return together.accumulate(self.model, batches, loss_of, meter)

    def prepare(self, forest: Forest) -> TorchBatch:
        """The forest on the device, padded where kernels want fixed lengths, with its attention planned.

        Raises:
            ConfigError: a path is longer than the length up to which the model's rotary angles are constant.
        """
        return prepare_batch(forest, self.device, self.longest)

    def backward(self, batch: TorchBatch, meter: Meter | None = None, *, first: bool = True) -> float:
        """Accumulate one forest's gradient; returns its loss.

        Args:
            batch: what `prepare` made.
            meter: accumulates metrics, if given.
            first: no update has been made since the batch began: the current policy is the old policy.
        """
        watchdog.progress()

        def compute() -> Tensor:
            return self._loss_of(batch, self.compute_hidden(trunk_of(self.model), batch), meter=meter, first=first)

        loss = self.whole(compute)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def _loss_of(self, batch: TorchBatch, hidden: Tensor, *, meter: Meter | None, first: bool) -> Tensor:
        """The loss of a forest's last hidden states: [T, d]."""
        rows = batch.rows
        logp, entropy = self._logps(self.model, hidden, rows)
        values = None
        if self.critic is not None and self.critic.trunk is None and not self.algorithm.reads_joint_paths:
            values = self.critic.head.fixed(hidden[rows.predictor], rows.critic_view)
        return self.loss(logp, entropy, rows, values, meter, first=first, divergence=self.diverge(hidden, rows))

    @computing
    @torch.no_grad()
    def logprobs(self, forests: Sequence[Forest], *, reference: bool = False) -> list[Tensor]:
        """Log-probabilities of the trained tokens; see `Trainer.logprobs`."""
        if not reference:
            return self.per_token(forests, self._score)
        with self.require_reference().exchanged():
            return self.per_token(forests, self._score)

    @computing
    @torch.no_grad()
    def values(self, forests: Sequence[Forest], start: float = 0.0) -> list[Tensor]:
        """The critic's values of the trained tokens; see `Critic.values`."""
        critic = self.require_critic()
        critic.start(start)
        trunk = trunk_of(self.model) if critic.trunk is None else critic.trunk
        return self.per_token(forests, lambda batch: critic.head(self._states(trunk, batch), batch.rows.critic_view))

    @computing
    @torch.no_grad()
    def layer_outputs(self, forest: Forest) -> list[Tensor]:
        """Each decoder layer's output for a forest: [T, d] each, float32, in the CPU's memory."""
        with record_layer_outputs(self.model) as layers:
            self._states(trunk_of(self.model), self.prepare(forest))
        return [layer[0, : len(forest)] for layer in layers]

    def fit(self, critic: ValueModel, batches: Sequence[TorchBatch]) -> Meter:
        """See `StepLearner`: a trunk of the critic's own is trained with it; the policy's is only read, once."""
        trunk = critic.trunk
        if trunk is not None:
            return critic.fit(self.value_updates(batches, lambda batch: [(self._states(trunk, batch), batch.rows)]))
        with torch.no_grad():  # in the CPU's memory: a batch's hidden states may be many
            known = {id(batch): self._states(trunk_of(self.model), batch).cpu() for batch in batches}
        return critic.fit(self.value_updates(batches, lambda batch: [(known[id(batch)], batch.rows)]))

    @computing
    @torch.no_grad()
    def token_rewards(self, forests: Sequence[Forest]) -> list[Tensor]:
        """The reward model's rewards of the trained tokens; see `Rewarder.token_rewards`."""
        learned, reference = self.reward_model, self.reference
        if learned is None or reference is None:
            raise InvalidInput(f"algo={self.algo.name} has no reward model: it needs none")
        with reference.exchanged():
            return self.per_token(
                forests, lambda batch: learned.rewards(self._score(batch, learned.model), self._score(batch))
            )

    def _fit_rewards(self, learned: RewardModel, batches: Sequence[TorchBatch]) -> dict[str, float]:
        """The reward model's update on a batch; its forests are computed one at a time."""

        def passes() -> Iterator[tuple[Tensor, Rows]]:
            for batch in batches:
                watchdog.progress()
                hidden = self.compute_hidden(trunk_of(learned.model), batch)
                yield self._logps(learned.model, hidden, batch.rows)[0], batch.rows

        metrics = learned.fit(passes()) if batches else {}
        learned.end_step()
        return metrics

    def per_token(self, forests: Sequence[Forest], compute: Callable[[TorchBatch], Tensor]) -> list[Tensor]:
        """`compute`'s result for each batch's rows, at their targets: [T] for each forest, 0 elsewhere."""
        found = []
        for forest in forests:
            batch = self.prepare(forest)
            value_T = torch.zeros(len(forest))
            if len(batch.rows) or self.processes > 1:  # ranks gather weights together, and as often
                value_T[batch.rows.target.cpu()] = compute(batch).cpu()
            found.append(value_T)
        return found

    def _states(self, trunk: nn.Module, batch: TorchBatch) -> Tensor:
        return self.whole(lambda: self.compute_hidden(trunk, batch)[batch.rows.predictor])

    def compute_hidden(self, trunk: nn.Module, batch: TorchBatch) -> Tensor:
        set_plan(trunk, batch.states)
        with self._precision():
            inputs = batch.inputs(trunk)
            out = language_of(trunk)(**inputs, position_ids=batch.position, use_cache=False, forest_plan=batch.plan)
        hidden: Tensor = out.last_hidden_state[0]
        return hidden

    def _logps(self, model: nn.Module, hidden: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        with self._precision():
            if self.head is not None:
                return read_scores(model.get_submodule(HEAD), hidden.index_select(0, rows.target), rows)
            head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]
            return token_logps(head, before_head(model)(hidden), rows, shape=self.logits)

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if self.config.dtype == "bfloat16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return contextlib.nullcontext()

    @torch.no_grad()
    def _score(self, batch: TorchBatch, model: nn.Module | None = None) -> Tensor:
        """Log-probabilities of the rows under the policy, or another model: [P]."""
        watchdog.progress()
        own = self.model if model is None else model
        return self.whole(lambda: self._logps(own, self.compute_hidden(trunk_of(own), batch), batch.rows)[0])

    # -------------------------------------------------------------------------- weights and folders

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every parameter once, by the name that files have for it; each expert of a layer by itself."""
        return self._named_weights({})

    def parts(self) -> dict[str, SavedAdapter]:
        """Return the smaller parts by their kind that, on the source folder's base, are the same weights."""
        adapter = self.lora.part(self.model) if self.lora else None
        return {} if adapter is None else {ADAPTER: adapter}

    def set_base(self, folder: Path) -> None:
        self.require_lora().set_source(Path(folder))

    def averaged_weights(self) -> Iterator[tuple[str, Tensor]]:
        if self.average is None:
            raise InvalidInput("the trainer keeps no average of its weights: trainer.average_decay is none")
        return self._named_weights(self.average.state_dict())

    def _named_weights(self, instead: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The weights, or other tensors of the same parameters."""
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or {})
        scale = self.lora.shape.scale if self.lora else 1.0
        for name, tensor in merge_adapter(WholeState(self.model, instead), scale):
            if name not in tied:
                own = [(self.files.get(name, name), tensor.detach())]
                yield from single_experts(self.model, name, tensor).items() or own

    def export(self, path: Path) -> None:
        """Write a Hugging Face folder, and in it another one, `averaged`, with `trainer.average_decay`."""
        with export_folder(Path(path), self._side_files) as folder:
            self.write(folder)
            if self.average is not None:
                with export_folder(folder / "averaged", self._side_files) as inner, self.average.exchanged():
                    self.write(inner)

    def write(self, folder: Path) -> None:
        """Write the weights as transformers does, and what the source's files hold beside them."""
        self.write_state(folder, WholeState(self.model, device="cpu"))

    def write_state(self, folder: Path, state: Mapping[str, Tensor]) -> None:
        """Write a folder of the model's whole tensors."""
        if self.lora is not None and self.lora.attached:
            self.lora.write(self.model, state, folder, self._side_files)
        else:
            self.model.save_pretrained(folder, state_dict=dict(state))  # type: ignore[operator]
        self._untrained.write(folder, self._side_files)

    def release(self) -> None:
        torch.cuda.empty_cache()  # nothing without CUDA

    def close(self) -> None:
        self.reference = self.average = self.critic = self.reward_model = self.lender = None
        self.model.to("meta")
