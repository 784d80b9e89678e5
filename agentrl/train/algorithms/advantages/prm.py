"""Score models of single steps: whether each step of a solution is right (`algo=prm`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import model_validator

from agentrl.config import LISTED, AlgoConfig, DataConfig
from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.base import Algorithm, Needs
from agentrl.train.algorithms.credit import Credit, NodeKey
from agentrl.train.algorithms.fields import ForestField
from agentrl.types import Group

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.rollout.sources.judged import JudgedRows
    from agentrl.train.algorithms.tokens import Tokens


class PrmConfig(AlgoConfig):
    """Settings of `prm`."""

    separator: str = "\n"
    """The text that follows each step; its last token is where the step's label is learned and read."""
    classes: Annotated[tuple[str, ...], LISTED] = ("wrong", "right")
    """The names of the model's outputs; labels that are false or true are the first and the last of them."""

    @model_validator(mode="after")
    def _can_be_read(self) -> PrmConfig:
        if not self.separator:
            raise ValueError("separator must not be empty: a step's label is read at its last token")
        if len(self.classes) < 2:
            raise ValueError(f"classes={list(self.classes)} must be two or more")
        return self


class StepLabelling(Algorithm):
    """Learns the label of each step, read at the last token of its separator."""

    name = "prm"
    settings = PrmConfig
    about = About(
        "Uesato et al., arXiv:2211.14275; Lightman et al., arXiv:2305.20050",
        "-log softmax(s)[label] at the end of each step",
        "rewards of steps, from labelled solutions",
        "TRL: PRMTrainer",
    )
    config: PrmConfig

    @property
    def needs(self) -> Needs:
        from agentrl.models.scoring import ScoreHead

        return Needs(engine=False, head=ScoreHead(self.config.classes, True, self.config.separator))

    @property
    def fields(self) -> tuple[ForestField, ...]:
        from agentrl.train.algorithms.scores import STEP_TARGET

        return (STEP_TARGET,)

    def read_rows(self, config: DataConfig) -> JudgedRows:
        from agentrl.rollout.sources.steps import read_steps

        return read_steps(config, self.config.classes, self.config.separator)

    def credit(self, groups: Sequence[Group], values: Mapping[NodeKey, Sequence[float]] | None = None) -> Credit:
        from agentrl.train.algorithms.scores import target_credit

        return target_credit(groups)

    def loss(self, tokens: Tokens) -> Tensor:
        return -tokens.logp * tokens.advantage
