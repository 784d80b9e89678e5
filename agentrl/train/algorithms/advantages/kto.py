"""Kahneman-Tversky optimisation (Ethayarajh et al., arXiv:2402.01306) of sessions that are desirable or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import SerializeAsAny

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.credit import Credit, Label, NodeKey, ids_by_group
from agentrl.train.algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from agentrl.train.algorithms.policy_losses import VALIDATED, LossConfig, preset
from agentrl.types import Group


class KtoConfig(PolicyGradientConfig):
    """Settings of `kto`."""

    loss: Annotated[SerializeAsAny[LossConfig], preset("kto"), VALIDATED] = LossConfig(name="kto")
    """A loss over sequences with labels: kto."""
    desirable_above: float = 0.5
    """Sessions with a reward above this are desirable, all others are not."""
    mismatch_seed: int = 0
    """Decides which other prompt's completions are measured below a prompt."""


class Kto(PolicyGradient):
    """Each session by itself; the batch's divergence is measured on completions below other prompts."""

    name = "kto"
    settings = KtoConfig
    about = About(
        "KTO, arXiv:2402.01306",
        "1 for a desirable session (path, with forks), -1 for any other; mismatched completions are measured only",
        "thumbs up or down instead of pairs; rewards of 0 and 1",
        "TRL: KTOTrainer",
    )
    compares = "labels"
    config: KtoConfig

    def credit(self, groups: Sequence[Group], values: Mapping[NodeKey, Sequence[float]] | None = None) -> Credit:
        """A label for each sequence of a scored session; all weigh the same."""
        from agentrl.train.algorithms.labels import label_credit
        from agentrl.train.algorithms.pairs import scored_sequences

        kind = self.policy_loss.require_sequence()
        scored = ids_by_group(groups)
        found = {
            group: [each for session in sessions for each in scored_sequences(session, kind)]
            for group, sessions in scored.items()
        }
        verdicts = [
            (key, each.reward > self.config.desirable_above)
            for members in found.values()
            for each in members
            for key in each.sequences
        ]
        labels = [Label(key, 1 if desirable else -1, 1 / len(verdicts)) for key, desirable in verdicts]
        credit = label_credit(groups, labels, kind, self.config.mismatch_seed)
        credit.counts = {group: float(sum(len(each.sequences) for each in members)) for group, members in found.items()}
        desirable = sum(desirable for _, desirable in verdicts)
        credit.metrics = {
            "groups/trained": float(sum(map(bool, found.values()))),
            "preference/desirable": desirable / max(len(verdicts), 1),
            "preference/mismatched": float(sum(len(group.sessions) for group in credit.added)),
        }
        return credit
