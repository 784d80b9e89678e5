"""Tapered off-policy REINFORCE (Le Roux et al., arXiv:2503.14286): only negative examples have importance weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.policy_losses.base import SequenceLoss

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train.algorithms.tokens import Tokens


class Topr(SequenceLoss):
    """-w A log π: w = 1 where A >= 0, and the sequence's ratio clipped to [0, 1] elsewhere."""

    name = "topr"
    about = About(
        "TOPR, arXiv:2503.14286",
        "-sg(w) A log π, w = 1 for A >= 0, else min(R, 1), R = Π r over the sequence",
        "stale or offline sessions, negative ones included",
        "",
    )

    def __call__(self, tokens: Tokens) -> Tensor:
        weight = tokens.sequence_log_ratio.detach().clamp(max=0).exp()
        weight = weight.masked_fill(tokens.advantage >= 0, 1.0)
        return -weight * tokens.advantage * tokens.logp
