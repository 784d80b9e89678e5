"""Sequence likelihood calibration (Zhao et al., arXiv:2305.10425) as a plug-in, on pairs that the policy samples.

    agentrl train env=calculator algo=examples/plugins/slic.py:Slic algo.delta=1 algo.epochs=2

In each group the session with the highest reward is chosen and the one with the lowest rejected. The loss of a pair is
max(0, delta - S_w + S_l), equation 3 without the term that regularises: S is the mean log-probability of all trained
tokens. Sessions with several branches are compared path by path, at equal weights.

The built-in algo=dpo would take this loss as `algo.loss` (`agentrl.plugins.loss.PairLoss`); an algorithm of its own
also chooses the pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from pydantic import PositiveFloat
from torch import Tensor

from agentrl.plugins.algorithm import (
    AlgoConfig,
    Algorithm,
    Credit,
    Group,
    Needs,
    NodeKey,
    Pair,
    Tokens,
    ids_by_group,
    pair_credit,
    sequence_keys,
)


class SlicConfig(AlgoConfig):
    """Settings of SLiC."""

    delta: PositiveFloat = 1.0
    """The margin by which the chosen session is to win, in nats per token."""


class Slic(Algorithm):
    """See the module."""

    name = "slic"
    settings = SlicConfig
    config: SlicConfig

    @property
    def needs(self) -> Needs:
        """Pairs of paths."""
        return Needs(sequence="session", pairs=True, group_size=2)

    def credit(self, groups: Sequence[Group], values: Mapping[NodeKey, Sequence[float]] | None = None) -> Credit:
        """A pair for each group whose rewards differ; each group counts in the denominator."""
        scored = [sessions for sessions in ids_by_group(groups).values() if sessions]
        pairs: list[Pair] = []
        for sessions in scored:
            best, worst = (pick(sessions, key=lambda session: session.reward or 0.0) for pick in (max, min))
            if best.reward != worst.reward:
                found = list(product(sequence_keys(best, "session"), sequence_keys(worst, "session")))
                pairs += [Pair(*pair, weight=1 / (len(scored) * len(found))) for pair in found]
        return pair_credit([session for sessions in scored for session in sessions], pairs, "session")

    def loss(self, tokens: Tokens) -> Tensor:
        """The formula of the module, for each side of a pair."""
        own = tokens.sequence_logp / tokens.sequence_length
        partner = tokens.partner_logp / tokens.partner_length
        margin = (own - partner) * tokens.sequence_advantage  # chosen less rejected
        tokens.weighted["preference/accuracy"] = (margin > 0).float()
        return (self.config.delta - margin).clamp(min=0)
