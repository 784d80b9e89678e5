"""The torch trainer's part in distillation: as a teacher it reads forests, as a student it computes divergences."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.train.algorithms import Algorithm
from agentrl.train.forest.forest import Forest, Rows
from agentrl.train.trainers.head import Logits
from agentrl.train.trainers.teachers.divergence import VocabularyHead, row_divergences
from agentrl.train.trainers.teachers.reading import read_rows
from agentrl.train.trainers.torch_trainer.batch import TorchBatch, before_head, computing, trunk_of


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
