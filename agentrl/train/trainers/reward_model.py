"""An implicit process reward model that learns from outcomes beside the policy (PRIME, arXiv:2502.01456).

It begins as the policy, and the weights of that moment are its reference. With S = the sum of a session's rewards

    reward of a token = beta · (log pi_model - log pi_reference)
    loss              = -(y log sigmoid(S) + (1 - y) log(1 - sigmoid(S)))      y: the outcome, from 0 to 1

so the loss's gradient is -(y - sigmoid(S)) · beta · the gradient of the session's summed log-probabilities. S is known
when rewards are computed for credit, by the same weights: one pass over forests, however they are packed, takes the
exact step. A token's `Rows.returns` times its weight is (y - sigmoid(S)) over the number of sessions, the sum of them
where several sessions share the token.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from agentrl.errors import InvalidInput
from agentrl.train.algorithms.base import RewardModelConfig
from agentrl.train.forest.forest import Rows
from agentrl.train.trainers.lora import merge
from agentrl.train.trainers.optimizer import Optimizer, to_cpu


class RewardModel:
    """The model with its optimizer, for one phase."""

    def __init__(self, policy: nn.Module, algo: RewardModelConfig, total_steps: int) -> None:
        self.beta = algo.reward_beta
        self.model = merge(copy.deepcopy(policy)).requires_grad_(True)  # what the policy freezes, it learns
        self.model.zero_grad(set_to_none=True)
        own = algo.model_copy(update={"lr": algo.reward_lr or algo.lr})
        self.optimizer = Optimizer(self.model.parameters(), own, total_steps)

    def rewards(self, logp: Tensor, ref_logp: Tensor) -> Tensor:
        """The reward of each token, from its log-probabilities under the model and the reference: [P]."""
        return self.beta * (logp - ref_logp)

    def fit(self, batch: Iterable[tuple[Tensor, Rows]]) -> dict[str, float]:
        """Take the batch's one update.

        Args:
            batch: each forest's log-probabilities under the model, [P], with the rows that they are of.
        """
        for logp, rows in batch:
            if rows.returns is None:
                raise InvalidInput("a reward model learns from `NodeAdvantage.returns`, and credit gave none")
            (-self.beta * rows.weight * rows.returns * logp).sum().backward()  # type: ignore[no-untyped-call]
        return {"reward_model/grad_norm": self.optimizer.step()}

    def end_step(self) -> None:
        """Count a training step, which the schedule follows, whether it had a signal or none."""
        self.optimizer.steps += 1

    def state(self) -> dict[str, Any]:
        """Return all that resuming needs."""
        return {"model": to_cpu(self.model.state_dict()), "optimizer": self.optimizer.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from `state`, with this model's own learning rate."""
        self.model.load_state_dict(state["model"])
        self.optimizer.restore(state["optimizer"])
