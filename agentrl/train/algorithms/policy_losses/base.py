"""Policy losses: their own settings, the sequence that they are over, and a value for each trained token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializeAsAny

from agentrl.config import OfPlugin, Section
from agentrl.errors import ConfigError
from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.credit import SequenceKind

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train.algorithms.fields import ForestField
    from agentrl.train.algorithms.tokens import Summand, Tokens
    from agentrl.train.forest.forest import Forest


Compared = Literal["pairs", "labels"]
"""The things that losses compare beside tokens and sequences with their advantages; see `PolicyLoss.compares`."""


class LossConfig(Section):
    """Settings of every policy loss; a loss's own are a subclass (`PolicyLoss.settings`)."""

    name: str = "clipped"
    """The loss's name or import path; see docs/algorithms.md."""


def preset(name: str, **settings: Any) -> OfPlugin:
    """Marks a section `loss` whose loss is this one, with these settings, unless others are given."""
    return OfPlugin("agentrl.train.algorithms.policy_losses:LOSSES", preset={"name": name, **settings})


VALIDATED = Field(validate_default=True)
"""Marks a section whose default is an instance of the base class."""

LossSection = Annotated[SerializeAsAny[LossConfig], preset("clipped"), VALIDATED]


class PolicyLoss:
    """The part of an algorithm that makes a loss of log-probabilities and advantages; `algo.loss` names it.

    Attributes:
        name: what configurations call it.
        settings: the class of its section of the configuration (`algo.loss.*`).
        about: what docs/algorithms.md lists.
        affine: the loss is a · advantage + b, where a and b don't depend on the advantage. The trainer then gives it a
            shared token's mean advantage, which is exact. Any other loss must be positively homogeneous in the
            advantage, loss(c · advantage) = c · loss(advantage) for c >= 0, unless it is over sequences.
        compares: what it is a function of, where that is not a token or a sequence and its advantage: `pairs` of
            sequences, or sequences with `labels`. Only algorithms whose credit has these take it.
        reference: whether it reads log-probabilities under the reference.
        config: the settings; subclasses annotate it with their own class.
    """

    name: ClassVar[str] = ""
    settings: ClassVar[type[LossConfig]] = LossConfig
    about: ClassVar[About] = About()
    affine: ClassVar[bool] = False
    compares: ClassVar[Compared | None] = None
    reference: ClassVar[bool] = False
    config: LossConfig

    def __init__(self, config: LossConfig | None = None) -> None:
        """Build a loss.

        Args:
            config: an instance of `settings`, or of a base class of it, whose missing fields get their defaults.
        """
        self.config = self.settings.completed(config, self.name)

    @property
    def sequence(self) -> SequenceKind | None:
        """The sequence of the sums of log-ratios; None: single tokens are read. May depend on the settings."""
        return None

    def require_sequence(self) -> SequenceKind:
        """Return the sequence of the sums.

        Raises:
            ConfigError: single tokens are read.
        """
        if self.sequence is None:
            raise ConfigError(f"algo.loss={self.name} reads single tokens: whole sequences are compared here")
        return self.sequence

    @property
    def summand(self) -> Summand | None:
        """The values that `Tokens.sequence_term_sum` adds up over a sequence; None: the loss doesn't read them."""
        return None

    @property
    def fields(self) -> tuple[ForestField, ...]:
        """The fields of forests that the loss reads as `Tokens.fields`. May depend on the settings."""
        return ()

    def mark(self, forests: Sequence[Forest]) -> None:
        """Set `Forest.marked`, where the loss treats some tokens of a batch apart (`Tokens.marked`).

        A trainer calls it at the beginning of a step with all forests of the batch, in each of its processes; which
        tokens are marked must not depend on how the batch is split into forests, nor on their order.
        """

    def __call__(self, tokens: Tokens) -> Tensor:
        """The loss of each trained token, not weighted yet: [P]; it may add to `tokens.metrics`."""
        raise NotImplementedError


class SequenceLossConfig(LossConfig):
    """Settings of every policy loss over sequences."""

    sequence: SequenceKind = "session"
    """The sequence that a ratio is over: `turn`, or `session` (every path from a root to a leaf)."""


class SequenceLoss(PolicyLoss):
    """A policy loss over sequences, which `algo.loss.sequence` chooses."""

    settings: ClassVar[type[LossConfig]] = SequenceLossConfig
    config: SequenceLossConfig

    @property
    def sequence(self) -> SequenceKind:
        return self.config.sequence
