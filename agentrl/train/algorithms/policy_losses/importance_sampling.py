"""The score function with an importance weight: an unbiased gradient, without a clip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.policy_losses.base import PolicyLoss

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train.algorithms.tokens import Tokens


class ImportanceSampling(PolicyLoss):
    """-sg(r) log π A: the gradient of -r A, and REINFORCE's where the ratio is 1 (Williams, 1992)."""

    name = "importance_sampling"
    about = About(
        "REINFORCE, Williams 1992",
        "-sg(r) A log π",
        "one update for each batch, or bounds by algo.correction",
        "verl: gpg (ratio 1)",
    )

    def __call__(self, tokens: Tokens) -> Tensor:
        from agentrl.train.algorithms.losses import score_function

        return score_function(tokens)
