"""Direct preference optimisation (Rafailov et al., arXiv:2305.18290) as a plug-in, on pairs that the policy samples.

    agentrl train env=calculator algo=examples/plugins/dpo.py:Dpo algo.beta=0.1 algo.epochs=2

In each group the session with the highest reward is chosen and the one with the lowest rejected. The loss of a pair is
-log sigmoid(beta * ((S_w - R_w) - (S_l - R_l))), equation 7: S sums the log-probabilities of all trained tokens, R
those under the reference. Sessions with several branches are compared path by path, at equal weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from pydantic import PositiveFloat
from torch import Tensor
from torch.nn.functional import logsigmoid

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


class DpoConfig(AlgoConfig):
    """Settings of DPO."""

    beta: PositiveFloat = 0.1
    """How strongly the policy is held to the reference."""


class Dpo(Algorithm):
    """See the module."""

    name = "dpo"
    settings = DpoConfig
    config: DpoConfig

    @property
    def needs(self) -> Needs:
        """Pairs of paths, and a reference."""
        return Needs(reference=True, sequence="session", pairs=True, group_size=2)

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
        """Equation 7, for each side of a pair."""
        own = tokens.sequence_logp - tokens.sequence_ref_logp
        partner = tokens.partner_logp - tokens.partner_ref_logp
        margin = self.config.beta * (own - partner) * tokens.sequence_advantage  # chosen less rejected
        tokens.metrics["policy/pair_accuracy"] = (margin > 0).float()
        return -logsigmoid(margin)
