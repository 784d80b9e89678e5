"""Algorithms that are an advantage and a policy loss: `algo` names the one, `algo.loss` the other.

A subclass says how advantages are estimated (`judge`, or all of `credit`), and which loss, denominator and so on are
its defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import SerializeAsAny

from agentrl.config import AlgoConfig
from agentrl.errors import ConfigError
from agentrl.train.algorithms.base import Algorithm, Needs
from agentrl.train.algorithms.credit import Credit, NodeKey
from agentrl.train.algorithms.policy_losses import VALIDATED, LossConfig, LossSection, make_loss, preset
from agentrl.train.algorithms.policy_losses.base import Compared
from agentrl.train.algorithms.returns import Found, credit_of, whiten
from agentrl.types import Group, Session

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train.algorithms.fields import ForestField
    from agentrl.train.algorithms.tokens import Summand, Tokens
    from agentrl.train.forest.forest import Forest


class PolicyGradientConfig(AlgoConfig):
    """Settings of every advantage."""

    loss: LossSection = LossConfig()
    """The policy loss: what is made of the advantages; see docs/algorithms.md."""


class UnclippedConfig(PolicyGradientConfig):
    """Settings of advantages that are known with a plain importance weight and one update for each batch."""

    loss: Annotated[SerializeAsAny[LossConfig], preset("importance_sampling"), VALIDATED] = LossConfig(
        name="importance_sampling"
    )


class PolicyGradient(Algorithm):
    """A base for algorithms with a choice of policy loss.

    Attributes:
        group_size: the fewest sessions of a group that give a signal.
        critic: whether advantages need a critic's values.
        reward_model: whether they need process rewards of a model that learns beside the policy.
        teacher: whether they need log-probabilities of a frozen policy.
        branches: whether they need sessions that are forked.
        counterfactuals: whether they need returns of continuations of joint turns.
        whole_sessions: whether they are of whole sessions, so that forks have no meaning.
        greedy: whether they need a greedy session beside each group.
        whitened: whether they are standardised over the batch's trained tokens.
        compares: what credit has besides advantages, `pairs` or `labels`; `algo.loss` is then one over these.
        policy_loss: the loss that `algo.loss` names.
    """

    settings: ClassVar[type[AlgoConfig]] = PolicyGradientConfig
    group_size: ClassVar[int] = 1
    critic: ClassVar[bool] = False
    reward_model: ClassVar[bool] = False
    teacher: ClassVar[bool] = False
    branches: ClassVar[bool] = False
    counterfactuals: ClassVar[bool] = False
    whole_sessions: ClassVar[bool] = False
    greedy: ClassVar[bool] = False
    whitened: ClassVar[bool] = False
    compares: ClassVar[Compared | None] = None
    config: PolicyGradientConfig

    def __init__(self, config: AlgoConfig | None = None) -> None:
        """Build an algorithm, and the loss that its settings name; see `Algorithm`.

        Raises:
            ConfigError: besides, the loss compares what the algorithm's credit does not have.
        """
        super().__init__(config)
        self.policy_loss = make_loss(self.config.loss)
        over = self.policy_loss.compares
        if over != self.compares:
            raise ConfigError(
                f"algo={self.config.name} gives {self.compares or 'advantages'}, and algo.loss={self.config.loss.name} "
                f"is a loss over {over or 'advantages'}: docs/algorithms.md says which losses go with it"
            )

    @property
    def needs(self) -> Needs:
        return Needs(
            critic=self.critic,
            reference=self.policy_loss.reference,
            pairs=self.compares == "pairs",
            labels=self.compares == "labels",
            reward_model=self.reward_model,
            teacher=self.teacher,
            sequence=self.policy_loss.sequence,
            group_size=self.group_size,
            branches=self.branches,
            counterfactuals=self.counterfactuals,
            whole_sessions=self.whole_sessions,
            greedy=self.greedy,
        )

    @property
    def fields(self) -> tuple[ForestField, ...]:
        """The policy loss's fields; an algorithm with its own adds them."""
        return self.policy_loss.fields

    @property
    def affine(self) -> bool:
        return self.policy_loss.affine

    @property
    def summand(self) -> Summand | None:
        return self.policy_loss.summand

    def judge(self, sessions: Sequence[Session]) -> Found:
        """Return the advantages of one group, from its scored sessions."""
        raise NotImplementedError(f"{type(self).__name__} has neither judge(sessions) nor credit(groups, values)")

    def credit(self, groups: Sequence[Group], values: Mapping[NodeKey, Sequence[float]] | None = None) -> Credit:
        """Each trained node's advantage and weight; by default as `judge` finds advantages, group by group."""
        across = (lambda found: whiten(found, groups)) if self.whitened else None
        return credit_of(groups, self.config, self.judge, across)

    def mark(self, forests: Sequence[Forest]) -> None:
        self.policy_loss.mark(forests)

    def loss(self, tokens: Tokens) -> Tensor:
        return self.policy_loss(tokens)
