"""A trainer in one file: plain transformers and AdamW, every path of a token tree as a row of its own.

    agentrl train env=calculator trainer=examples/plugins/row_trainer.py:TRAINER algo.kl_coef=0

It is what a trainer on another library begins as. The run's algorithm, its loss and its metrics come from `objective`
and `Meter`; the model, its optimizer and its files are the trainer's own. A token that several paths share is computed
with each of them, and counted once.

Given up for so small a file: a reference, critics, losses over sequences, minibatches, GPUs, and computing shared
prompts once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from agentrl.plugins.trainer import (
    AlgoConfig,
    ConfigError,
    Forest,
    Meter,
    Rows,
    TrainerConfig,
    TrainerPlugin,
    exported,
    make_algorithm,
    objective,
    paths_to_leaves,
    read_side_files,
    token_counts,
)


class RowTrainer:
    """See the module."""

    def __init__(
        self, path: Path, config: TrainerConfig, algo: AlgoConfig, *, total_steps: int = 1, seed: int = 0
    ) -> None:
        self.name, self.threads, self.deterministic, self.version = config.name, config.threads, True, 0
        self.side_files = read_side_files(path)  # now: the folder may be gone by the time of an export
        self.model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.begin(algo, total_steps)

    def begin(self, algo: AlgoConfig, total_steps: int) -> None:
        """Begin a phase with a fresh optimizer."""
        self.algorithm = make_algorithm(algo)
        if algo.kl_coef or self.algorithm.needs.reference or self.algorithm.sequence is not None:
            raise ConfigError(f"trainer={self.name} has no reference and no sums over sequences: use algo.kl_coef=0")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=algo.lr, weight_decay=0.0)

    def step(self, forests: Sequence[Forest], state: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Learn from a batch: `algo.epochs` updates."""
        if state is not None:
            self.algorithm.load_snapshot(state)
        self.algorithm.mark(forests)
        algo, meter, loss, norm = self.algorithm.config, Meter(), 0.0, 0.0
        batches = [(forest, forest.rows()) for forest in forests if forest.trained]
        for epoch in range(algo.epochs if batches else 0):
            loss = 0.0
            for forest, rows in batches:
                logp, entropy = self._score(forest, rows)
                value, tokens = objective(self.algorithm, logp, entropy, rows, version=self.version)
                rows.old_logp = tokens.old_logp  # what later updates are compared with
                value.backward()  # type: ignore[no-untyped-call]
                meter.add(tokens, rows, engine=self.algorithm.needs.engine, first=epoch == 0)
                loss += float(value.detach())
            norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), algo.max_grad_norm))
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.version += 1
        return {"loss": loss, "grad_norm": norm, "lr": algo.lr, **meter.metrics(), **token_counts(forests)}

    @torch.no_grad()
    def logprobs(self, forests: Sequence[Forest], *, reference: bool = False) -> list[Tensor]:
        """The log-probability of every trained token, [T] for each forest."""
        found = []
        for forest in forests:
            rows, logp_T = forest.rows(), torch.zeros(len(forest))
            if len(rows):
                logp_T[rows.target] = self._score(forest, rows)[0]
            found.append(logp_T)
        return found

    def _score(self, forest: Forest, rows: Rows) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each row, [P] each, at the temperature that it was sampled at."""
        left = {token: row for row, token in enumerate(rows.target.tolist())}
        order, parts = list[int](), list[Tensor]()
        for path in paths_to_leaves(forest):
            own = [(place, left.pop(token)) for place, token in enumerate(path[1:].tolist()) if token in left]
            if own:
                logits = self.model(forest.token_ids[path][None], use_cache=False).logits[0]
                parts.append(logits[[place for place, _ in own]])
                order += [row for _, row in own]
        logits_PV = torch.cat(parts)[torch.tensor(order).argsort()] / rows.temperature[:, None]
        logp_PV = logits_PV.log_softmax(-1)
        return logp_PV.gather(1, rows.token_ids[:, None])[:, 0], -(logp_PV.exp() * logp_PV).sum(-1)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter once, by the name that files have for it."""
        return ((name, tensor.detach()) for name, tensor in self.model.named_parameters())

    def save(self, path: Path) -> None:
        """Write a file beside its place, and rename it."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "version": self.version}
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, partial := path.with_name(path.name + ".partial"))
        partial.replace(path)

    def load(self, path: Path) -> None:
        """Load what `save` wrote."""
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.version = state["version"]

    def export(self, path: Path) -> None:
        """Write a Hugging Face folder; all but the weights is as in the one that was loaded."""
        with exported(path, self.side_files) as folder:
            self.model.save_pretrained(folder)

    def close(self) -> None:
        """Free the weights."""
        self.model.to("meta")


class RowPlugin(TrainerPlugin):
    """The trainer as a plug-in: one process, which keeps what `trainer=torch` keeps."""

    def factory(self) -> type[RowTrainer]:
        """The class, which takes a folder, the trainer's settings and the algorithm's."""
        return RowTrainer


TRAINER = RowPlugin()
