"""Preference optimisation from a group's sessions: pairs by reward, for the losses over pairs.

The same algorithm learns from pairs of any origin: groups whose sessions have rewards of 1 and 0
(`agentrl.train.algorithms.pairs.preference_group`) are pairs from a file, groups that the policy samples make it online
(Guo et al., arXiv:2402.04792).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import NonNegativeFloat, SerializeAsAny

from agentrl.config import AlgoConfig
from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.credit import Credit, NodeKey, ids_by_group
from agentrl.train.algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from agentrl.train.algorithms.policy_losses import VALIDATED, LossConfig, preset
from agentrl.types import Group

FORMULA = "pairs of a group's sessions (of its paths, with forks): 1 for the chosen, -1 for the rejected"


class DpoConfig(PolicyGradientConfig):
    """Settings of `dpo` and the other algorithms over pairs."""

    loss: Annotated[SerializeAsAny[LossConfig], preset("dpo"), VALIDATED] = LossConfig(name="dpo")
    """A loss over pairs: dpo, ipo, robust, simpo, cpo, orpo."""
    pairing: Literal["best_worst", "all"] = "best_worst"
    """A group's pairs: the best reward against the worst, or any two that differ. A group's pairs weigh 1 together."""
    min_gap: NonNegativeFloat = 0.0
    """Sessions whose rewards differ by no more than this make no pair."""


class Dpo(PolicyGradient):
    """Direct preference optimisation, and the base of the other algorithms over pairs: they differ in their loss."""

    name = "dpo"
    settings: ClassVar[type[AlgoConfig]] = DpoConfig
    about = About(
        "DPO, arXiv:2305.18290; online, arXiv:2402.04792",
        FORMULA,
        "preferences rather than rewards; rewards whose scale means nothing",
        "TRL: DPOTrainer, OnlineDPOTrainer",
    )
    group_size = 2
    compares = "pairs"
    config: DpoConfig

    def credit(self, groups: Sequence[Group], values: Mapping[NodeKey, Sequence[float]] | None = None) -> Credit:
        """A group's pairs by reward; each group counts in the denominator, those without a pair included."""
        from agentrl.train.algorithms.pairs import pair_credit, pairs_of_groups

        kind = self.policy_loss.require_sequence()
        scored = {group: sessions for group, sessions in ids_by_group(groups).items() if sessions}
        pairs = pairs_of_groups(scored, kind, self.config.pairing, self.config.min_gap)
        credit = pair_credit([session for sessions in scored.values() for session in sessions], pairs, kind)
        credit.counts = dict.fromkeys(scored, 1.0)
        chosen = {pair.chosen[0] for pair in pairs}
        paired = sum(any(session.id in chosen for session in sessions) for sessions in scored.values())
        credit.metrics = {"groups/trained": float(paired), "preference/pairs": float(len(pairs))}
        return credit


class SimpoAlgorithmConfig(DpoConfig):
    """Settings of `simpo`."""

    loss: Annotated[SerializeAsAny[LossConfig], preset("simpo"), VALIDATED] = LossConfig(name="simpo")


class Simpo(Dpo):
    """Simple preference optimisation."""

    name = "simpo"
    settings = SimpoAlgorithmConfig
    about = About("SimPO, arXiv:2405.14734", FORMULA, "preferences without a reference", "TRL: CPOTrainer")


class CpoAlgorithmConfig(DpoConfig):
    """Settings of `cpo`."""

    loss: Annotated[SerializeAsAny[LossConfig], preset("cpo"), VALIDATED] = LossConfig(name="cpo")


class Cpo(Dpo):
    """Contrastive preference optimisation."""

    name = "cpo"
    settings = CpoAlgorithmConfig
    about = About("CPO, arXiv:2401.08417", FORMULA, "preferences and imitation, no reference", "TRL: CPOTrainer")


class OrpoAlgorithmConfig(DpoConfig):
    """Settings of `orpo`."""

    loss: Annotated[SerializeAsAny[LossConfig], preset("orpo"), VALIDATED] = LossConfig(name="orpo")


class Orpo(Dpo):
    """Odds ratio preference optimisation."""

    name = "orpo"
    settings = OrpoAlgorithmConfig
    about = About("ORPO, arXiv:2403.07691", FORMULA, "preferences straight from a base model", "TRL: ORPOTrainer")
