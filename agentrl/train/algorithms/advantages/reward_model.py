"""Score models of whole conversations: which of two is better, a score, or a class (`algo=reward_model`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import NonNegativeFloat, model_validator

from agentrl.config import LISTED, AlgoConfig, DataConfig
from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.base import Algorithm, Needs
from agentrl.train.algorithms.credit import Credit, NodeKey, ids_by_group
from agentrl.train.algorithms.fields import ForestField
from agentrl.types import Group

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.rollout.sources.judged import JudgedRows
    from agentrl.train.algorithms.tokens import Tokens


class ScoreModelConfig(AlgoConfig):
    """Settings of `reward_model`."""

    only_with: ClassVar[Mapping[str, str]] = dict.fromkeys(("center_coef", "pairing", "min_gap"), "target=pairs")
    target: Literal["pairs", "score", "label"] = "pairs"
    """The target that is learned: which of two conversations is better (pairs), a conversation's score, or its class
    (label)."""
    classes: Annotated[tuple[str, ...], LISTED] = ()
    """The names of the classes, at least two, in the order of the model's outputs; with target=label."""
    center_coef: NonNegativeFloat = 0.0
    """Weight of (c + r)², which keeps the scores of a pair around 0 (Eisenstein et al., arXiv:2312.09244)."""
    pairing: Literal["best_worst", "all"] = "best_worst"
    """The pairs of a recorded group, as in `dpo`; rows of a file are pairs themselves."""
    min_gap: NonNegativeFloat = 0.0
    """Sessions of a recorded group whose rewards differ by no more than this make no pair."""

    @model_validator(mode="after")
    def _classes_fit(self) -> ScoreModelConfig:
        if (self.target == "label") != bool(self.classes) or len(self.classes) == 1:
            raise ValueError(
                f"classes={list(self.classes)}: target=label takes the names of two classes or more, and others none"
            )
        return self


class ScoreModelling(Algorithm):
    """Learns a score of whole conversations, read at their last token."""

    name = "reward_model"
    settings = ScoreModelConfig
    about = About(
        "Bradley and Terry, 1952; Christiano et al., arXiv:1706.03741; margins: arXiv:2307.09288",
        "pairs: -log sigmoid(c - r - margin) + center_coef (c + r)²; score: (s - target)²; "
        "label: -log softmax(s)[label]",
        "a reward from preferences, scores or labels",
        "TRL: RewardTrainer",
    )
    config: ScoreModelConfig

    @property
    def needs(self) -> Needs:
        """A head of scores, and pairs of paths where they are compared."""
        from agentrl.models.scoring import ScoreHead

        pairs = self.config.target == "pairs"
        head = ScoreHead(self.config.classes or ("score",))
        return Needs(engine=False, head=head, pairs=pairs, sequence="session" if pairs else None)

    @property
    def fields(self) -> tuple[ForestField, ...]:
        from agentrl.train.algorithms.scores import MARGINS, TARGET

        return (MARGINS,) if self.config.target == "pairs" else (TARGET,)

    def read_rows(self, config: DataConfig) -> JudgedRows:
        from agentrl.rollout.sources.judged import read_pairs, read_scored

        if self.config.target == "pairs":
            return read_pairs(config)
        return read_scored(config, self.config.target, self.config.classes)

    def credit(self, groups: Sequence[Group], values: Mapping[NodeKey, Sequence[float]] | None = None) -> Credit:
        """A file's pairs, all of the same weight, or those of each recorded group by reward; else every target."""
        from agentrl.rollout.sources.judged import PAIR
        from agentrl.train.algorithms.pairs import pair_credit, pairs_of_groups
        from agentrl.train.algorithms.scores import pairs_of_rows, target_credit

        if self.config.target != "pairs":
            return target_credit(groups)
        scored = {name: sessions for name, sessions in ids_by_group(groups).items() if sessions}
        sessions = [session for members in scored.values() for session in members]
        rows = any(PAIR in session.info for session in sessions)
        pairs = (
            pairs_of_rows(scored)
            if rows
            else pairs_of_groups(scored, "session", self.config.pairing, self.config.min_gap)
        )
        credit = pair_credit(sessions, pairs, "session")
        paired = {pair.chosen[0] for pair in pairs}
        counts = {name: sum(session.id in paired for session in members) for name, members in scored.items()}
        credit.counts = {name: float(count) if rows else 1.0 for name, count in counts.items()}
        credit.metrics = {"groups/trained": float(sum(map(bool, counts.values()))), "scores/pairs": float(len(pairs))}
        return credit

    def loss(self, tokens: Tokens) -> Tensor:
        if self.config.target == "label":
            return -tokens.logp * tokens.advantage
        if self.config.target == "score":
            return (tokens.logp - tokens.fields["target"].values).square() * tokens.advantage
        from torch.nn.functional import softplus

        first = tokens.sequence_advantage > 0
        chosen = tokens.sequence_logp.where(first, tokens.partner_logp)
        rejected = tokens.partner_logp.where(first, tokens.sequence_logp)
        loss = softplus(tokens.fields["margin"].values.to(chosen.dtype) - (chosen - rejected))
        if self.config.center_coef:
            loss = loss + self.config.center_coef * (chosen + rejected).square()
        tokens.weighted |= {
            "scores/accuracy": (chosen > rejected).double(),
            "scores/margin": (chosen - rejected).detach(),
        }
        tokens.weighted |= {"scores/chosen": chosen.detach(), "scores/rejected": rejected.detach()}
        return loss
