"""The torch trainer's part in distillation: as a teacher it reads forests, as a student it computes divergences."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.train.algorithms import Algorithm
from agentrl.train.algorithms.divergences import IDS, LOGPS, STATES
from agentrl.train.forest.forest import Forest, Rows
from agentrl.train.trainers.head import Logits, chunk_on
from agentrl.train.trainers.teachers.divergence import VocabularyHead, row_divergences
from agentrl.train.trainers.torch_trainer.batch import TorchBatch, before_head, computing, trunk_of


@torch.no_grad()
def read_rows(head: VocabularyHead, states: Tensor, rows: Rows, length: int, top_k: int | None) -> dict[str, Tensor]:
    """Return what the head says of each row, at the row's temperature.

    Args:
        head: the model's.
        states: [P, d], the hidden states that predict the rows.
        rows: a forest's, P of them.
        length: the forest's, T.
        top_k: how many of the most probable tokens; None: the hidden states instead.

    Returns:
        In the CPU's memory, by the targets: `logp` [T] of the target, and either `IDS` and `LOGPS` [T, k] or `STATES`
        [T, d]; elsewhere 0, and -1 for ids.
    """
    logp = states.new_zeros(len(rows), dtype=torch.float32)
    most = min(top_k or 0, head.weight.shape[0])
    ids = torch.full((len(rows), top_k or 0), -1, dtype=torch.int64, device=states.device)
    logps = logp.new_zeros(ids.shape)
    size = max(1, chunk_on(states.device) // head.weight.shape[0])
    for at in (slice(start, start + size) for start in range(0, len(rows), size)):
        own = head.logps(states[at], rows.temperature[at])
        logp[at] = own.gather(1, rows.token_ids[at, None]).squeeze(1)
        if most:
            logps[at, :most], ids[at, :most] = own.topk(most)
    found = {"logp": logp, **({STATES: states.float()} if top_k is None else {IDS: ids.int(), LOGPS: logps})}
    return {name: _at_targets(values.cpu(), rows.target.cpu(), length, name) for name, values in found.items()}


def _at_targets(values: Tensor, target: Tensor, length: int, name: str) -> Tensor:
    whole = values.new_full((length, *values.shape[1:]), -1 if name == IDS else 0)
    whole[target] = values
    return whole


class Distilling:
    """The heads of a `TorchTrainer` beside log-probabilities; the attributes are the trainer's."""

    model: nn.Module
    logits: Logits
    algorithm: Algorithm
    threads: int | None
    device: torch.device
    teacher: VocabularyHead | None

    def set_teacher(self, head: VocabularyHead) -> None:
        """Compare with a teacher by its head, which reads the hidden states that forests hold."""
        self.teacher = head.moved(self.device)

    @property
    def output_head(self) -> VocabularyHead:
        """The head; under FSDP its weights are whole while it computes alone."""
        own: Any = self.model.get_output_embeddings()  # type: ignore[operator]
        return VocabularyHead(own.weight, getattr(own, "bias", None), self.logits)

    def diverge(self, hidden: Tensor, rows: Rows) -> Tensor | None:
        """The rows' divergences from what their forest has of the teacher, [P]; None for none.

        Args:
            hidden: [T, d], the trunk's outputs.
            rows: P pairs.
        """
        if (wanted := self.algorithm.divergence) is None or not len(rows):
            return None
        with self._precision():
            states = before_head(self.model)(hidden).index_select(0, rows.predictor)
            return row_divergences(wanted, states, self.output_head, rows, self.teacher)

    @computing
    @torch.no_grad()
    def read_forest(self, forest: Forest, top_k: int | None) -> dict[str, Tensor]:
        """Return what the model says of a forest as a teacher; see `read_rows`."""
        batch = self.prepare(forest)
        with self._precision():
            states = before_head(self.model)(self._states(trunk_of(self.model), batch))
            return read_rows(self.output_head, states, batch.rows, len(forest), top_k)

    def prepare(self, forest: Forest) -> TorchBatch:
        raise NotImplementedError

    def _states(self, trunk: nn.Module, batch: TorchBatch) -> Tensor:
        raise NotImplementedError

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        raise NotImplementedError
