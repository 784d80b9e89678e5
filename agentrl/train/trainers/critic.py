"""A critic: a linear head on hidden states, those of the policy or those of a trunk of its own.

    value = h · w / √d + s · u + b        h: the last hidden state of the token that predicts, [d]
                                          s: what a centralised critic sees besides (`Env.critic_view`), [v]

The weight is initialised to zero and the bias to the first batch's mean return, the best constant prediction. Norms
give hidden states a length of about √d; divided by it, a step of Adam changes a value by at most about √d times the
learning rate, and not by d times.

The critic is updated apart from the policy: `CriticConfig.value_epochs` times on each minibatch, after the policy, by
optimizers of its own with their own rates and their own clipping; its epochs have the policy's minibatches in turn. On
the policy's trunk the hidden states don't change meanwhile, so they are computed once; the value loss reaches that
trunk only through the policy's own passes (`CriticConfig.value_coef`), which don't update the head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.errors import ConfigError
from agentrl.train.algorithms.base import CriticConfig
from agentrl.train.algorithms.losses import value_error
from agentrl.train.algorithms.objective import Meter
from agentrl.train.forest.forest import Rows
from agentrl.train.trainers.optimizer import Optimizer, to_cpu

ValueUpdates = Callable[[int], Iterable[Iterable[tuple[Tensor, Rows]]]]
"""Iterates over an epoch's minibatches: of each the forests' hidden states [P, d] with the rows that they predict."""

SHARED_EPOCHS = 32
"""Updates on a batch with fixed hidden states: they are cheap, and a few steps of Adam don't fit the head
(`benchmarks.critic`)."""
OWN_EPOCHS = 4
"""Updates on a batch of a trunk of its own, each of them a forward and a backward pass."""


class ValueHead(nn.Module):
    """[*, d], and [*, v] where the critic sees more than the policy -> [*], in float32."""

    def __init__(self, width: int, view: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, width))
        self.bias = nn.Parameter(torch.zeros(()))
        self.view = nn.Parameter(torch.zeros(view)) if view else None

    def forward(self, states: Tensor, seen: Tensor | None = None) -> Tensor:
        """The values of hidden states, and of what else is seen."""
        return _values(states, seen, self.weight, self.view, self.bias)

    def fixed(self, states: Tensor, seen: Tensor | None = None) -> Tensor:
        """Return the values for a gradient that reaches the hidden states and not the head."""
        view = None if self.view is None else self.view.detach()
        return _values(states, seen, self.weight.detach(), view, self.bias.detach())


def _values(states: Tensor, seen: Tensor | None, weight: Tensor, view: Tensor | None, bias: Tensor) -> Tensor:
    values = states.float() @ weight[0] / math.sqrt(weight.shape[1]) + bias
    return values if view is None or seen is None else values + seen.to(values.device) @ view


class ValueModel:
    """A critic with its optimizers, for one phase.

    Args:
        width: d, of the hidden states.
        algo: the phase's settings.
        total_steps: the phase's length, for the schedule.
        device: where the head computes.
        trunk: computes the hidden states, where it is not the policy's.
        reduce: sums gradients over ranks in place, where there are several; each then takes the same step.
    """

    def __init__(
        self,
        width: int,
        algo: CriticConfig,
        total_steps: int,
        device: torch.device,
        trunk: nn.Module | None = None,
        reduce: Callable[[Sequence[Tensor]], None] | None = None,
    ) -> None:
        self.algo, self.trunk = algo, trunk
        self.head = ValueHead(width, algo.value_view).to(device)
        self.started = False
        self.epochs = algo.value_epochs or (SHARED_EPOCHS if trunk is None else OWN_EPOCHS)
        self.optimizers = [Optimizer(self.head.parameters(), _at(algo, algo.value_lr), total_steps, reduce=reduce)]
        if trunk is not None:
            rate = algo.value_trunk_lr or algo.lr
            self.optimizers.append(Optimizer(trunk.parameters(), _at(algo, rate), total_steps))

    @torch.no_grad()
    def start(self, mean: float) -> None:
        """Initialise the prediction to `mean`; a critic that has started already is unchanged."""
        if not self.started:
            self.head.bias.fill_(mean)
            self.started = True

    def fit(self, updates: ValueUpdates) -> Meter:
        """Take the updates of one batch. Metrics are those before each update."""
        meter = Meter()
        for minibatch in (each for epoch in range(self.epochs) for each in updates(epoch)):
            for states, rows in minibatch:
                values = self.head(states.to(self.head.weight.device), rows.critic_view)
                meter.add_values(values, rows, self.algo.value_clip)
                (rows.weight * value_error(values, rows, self.algo.value_clip)).sum().backward()  # type: ignore[no-untyped-call]
            for optimizer in self.optimizers:
                optimizer.step()
        return meter

    def end_step(self) -> None:
        """Count a training step, which the schedule follows, whether it had a signal or none."""
        for optimizer in self.optimizers:
            optimizer.steps += 1

    def state(self) -> dict[str, Any]:
        """Return all that resuming needs."""
        return {
            "head": to_cpu(self.head.state_dict()),
            "trunk": None if self.trunk is None else to_cpu(self.trunk.state_dict()),
            "optimizers": [optimizer.state() for optimizer in self.optimizers],
            "started": self.started,
            "path": self.algo.value_path,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from `state`, with this critic's own learning rates.

        Raises:
            ConfigError: it was saved by a critic with another trunk, one that read other paths, or saw more or less.
        """
        ours, saved = ("policy" if trunk is None else "own" for trunk in (self.trunk, state["trunk"]))
        if ours != saved:
            raise ConfigError(
                f"algo.value_trunk={ours}: the checkpoint's critic has value_trunk={saved}; resume with that"
            )
        had = len(state["head"].get("view", ()))
        if had != self.algo.value_view:
            raise ConfigError(
                f"algo.value_view={self.algo.value_view}: the checkpoint's critic has {had}; resume with that"
            )
        if (path := state.get("path", "agent")) != self.algo.value_path:
            raise ConfigError(
                f"algo.value_path={self.algo.value_path}: the checkpoint's critic has {path}; resume with that"
            )
        self.head.load_state_dict(state["head"])
        if self.trunk is not None:
            self.trunk.load_state_dict(state["trunk"])
        for optimizer, held in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.restore(held)
        self.started = bool(state["started"])


def _at(algo: CriticConfig, rate: float) -> CriticConfig:
    warmup = algo.warmup_steps if algo.value_lr_warmup is None else algo.value_lr_warmup
    return algo.model_copy(update={"lr": rate, "warmup_steps": warmup})
