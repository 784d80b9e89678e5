"""Algorithms: their own settings, what they need, which groups they train on, credit, and a loss.

Adding one touches no loop, no packing and no backend: write a subclass of `Algorithm` in a module of your own and name
it by import path, or register it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from agentrl.config import AlgoConfig, DataConfig, Fraction
from agentrl.errors import ConfigError, InvalidInput
from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.adaptive import Adaptive
from agentrl.train.algorithms.credit import Credit, NodeKey, SequenceKind
from agentrl.types import Group, Session

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.models.scoring import ScoreHead
    from agentrl.rollout.sources.judged import JudgedRows
    from agentrl.train.algorithms.divergences import Divergence
    from agentrl.train.algorithms.fields import ForestField
    from agentrl.train.algorithms.tokens import Summand, Tokens
    from agentrl.train.forest.forest import Forest


class CriticConfig(AlgoConfig):
    """Settings of every algorithm with a critic."""

    only_with: ClassVar[Mapping[str, str]] = {
        "value_trunk_lr": "value_trunk=own",
        "value_coef": "value_trunk=policy and value_path=agent",
    }
    gamma: Fraction = 1.0
    """Discount factor per step."""
    gae_step: Literal["token", "turn"] = "token"
    """A step of generalised advantage estimation: a sampled token, or a turn, whose tokens then share one advantage,
    from the value before its first token."""
    gae_lambda: Fraction = 1.0
    """Lambda of generalised advantage estimation: 1 takes whole returns, 0 the critic's value after one step."""
    value_trunk: Literal["policy", "own"] = "policy"
    """The hidden states that the critic reads: the policy's, or those of a copy of it that learns values alone
    (torch)."""
    value_view: int = Field(default=0, ge=0)
    """The numbers of `Env.critic_view`, which no agent sees, that the critic reads besides hidden states (torch,
    fsdp)."""
    value_path: Literal["agent", "joint"] = "agent"
    """The tokens that the critic reads: the agent's own path, or with `joint` what all agents of the session were told
    and said until the turn, in one path (torch, fsdp, megatron)."""
    value_coef: NonNegativeFloat = 0.1
    """Weight of the critic's loss in the policy's trunk; 0 leaves the trunk to the policy, as `value_path=joint` and
    `value_trunk=own` do."""
    value_epochs: PositiveInt | None = None
    """Updates of the critic on each batch, or on each of its `minibatches`; None is 32 on the policy's trunk, whose
    hidden states are computed once for all of them, and 4 on a trunk of its own."""
    value_clip: PositiveFloat | None = None
    """A value that moves further than this from what it was before the step's first update is clipped; None: never."""
    value_warmup: int = Field(default=0, ge=0)
    """Steps at the beginning of a phase in which only the critic learns; the policy stays as it is."""
    normalize_returns: bool = False
    """The critic learns returns less their running mean, over their running standard deviation, each batch weighing the
    same (MAPPO, arXiv:2103.01955, section 5.1); `value_clip` is then in those units."""
    value_lr: PositiveFloat = 3e-2
    """Peak learning rate of the critic's row and bias."""
    value_trunk_lr: PositiveFloat | None = None
    """Peak learning rate of the critic's own trunk; None is `lr`."""
    value_lr_warmup: int | None = Field(default=None, ge=0)
    """Steps over which the critic's learning rates rise; None is `warmup_steps`."""


class RewardModelConfig(AlgoConfig):
    """Settings of every algorithm with a reward model that learns beside the policy (torch)."""

    reward_beta: PositiveFloat = 0.05
    """A token's process reward is this times its log-ratio of the reward model to the reference."""
    reward_lr: PositiveFloat | None = None
    """Peak learning rate of the reward model; None is `lr`."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The algorithm's demands on the loop and the trainer.

    Attributes:
        critic: values of every token's state for `credit`; `settings` is then a subclass of `CriticConfig`. A trainer
            without a critic refuses the algorithm by name.
        reward_model: process rewards of every token for `credit`, as its `values`, from a model that learns from
            outcomes beside the policy; `settings` is then a subclass of `RewardModelConfig`. The node advantages then
            carry `values` and `returns`, see `agentrl.train.trainers.reward_model`.
        teacher: log-probabilities of every token for `credit`, as its `values`, under the frozen policy that
            `Algorithm.teacher_of` names; the settings' `AlgoConfig.asked` has all that it may name.
        reference: log-probabilities under the weights that the phase began with (`algo.kl_coef` above 0 also needs
            them).
        sequence: log-ratios summed over whole turns or sessions: a pass without gradient before every update.
        pairs: sums of log-probabilities over pairs of sequences, which `credit` names (`Credit.pairs`), in that pass;
            with `sequence`.
        labels: the same over single sequences with a verdict (`Credit.labels`), and their divergence from the
            reference over the batch (`Tokens.divergence`); with `sequence`.
        group_size: the fewest sessions of a group that give a signal.
        branches: sessions that are forked (`rollout.branch`).
        counterfactuals: returns of continuations of joint turns, in `Session.info`; `settings` then has
            `counterfactuals`, how many there are for each turn.
        combinations: a group's tree of joint turns; `settings` then has `grows`, `pairing` and `max_joint_actions`.
        whole_sessions: sessions without forks, since its advantages are of whole sessions.
        greedy: one more session of each group's task at temperature 0 (`Group.greedy`), which is not trained.
        full_support: tokens that were drawn from the whole vocabulary.
        engine: a policy sampled the tokens; otherwise they are demonstrations, and ratios and mismatch mean nothing.
        head: a head of scores in place of the vocabulary's, which is read at the trained tokens themselves. A token's
            `logp` is then its score, or with several classes the log-probability of its label (the field `target`). A
            trainer without such a head refuses the algorithm by name.
    """

    critic: bool = False
    reward_model: bool = False
    teacher: bool = False
    reference: bool = False
    sequence: SequenceKind | None = None
    pairs: bool = False
    labels: bool = False
    group_size: int = 1
    branches: bool = False
    counterfactuals: bool = False
    combinations: bool = False
    whole_sessions: bool = False
    greedy: bool = False
    full_support: bool = False
    engine: bool = True
    head: ScoreHead | None = None

    def __post_init__(self) -> None:
        for name in ("pairs", "labels"):
            if getattr(self, name) and self.sequence is None:
                raise InvalidInput(f"needs.{name}=True goes with needs.sequence='turn' or 'session': what they are of")

    @property
    def values(self) -> bool:
        """True if `credit` needs `values`, numbers of each token: a critic's, a reward model's, or a teacher's."""
        return self.critic or self.reward_model or self.teacher


class Choice(StrEnum):
    """The decision on a finished group."""

    KEEP = "keep"  # it is trained on
    DROP = "drop"  # the step has one group less
    REPLACE = "replace"  # another task's group is generated in its place, within rollout.max_replaced


class Algorithm:
    """A learning algorithm with its settings.

    Attributes:
        name: what configurations call it.
        settings: the class of its section of the configuration (`algo.*`).
        about: what docs/algorithms.md lists.
        config: the settings; subclasses annotate it with their own class.
        adaptive: coefficients that change from step to step, and running statistics.
    """

    name: ClassVar[str] = ""
    settings: ClassVar[type[AlgoConfig]] = AlgoConfig
    about: ClassVar[About] = About()
    config: AlgoConfig

    def __init__(self, config: AlgoConfig | None = None) -> None:
        """Build an algorithm.

        Args:
            config: an instance of `settings`, or of a base class of it, whose missing fields get their defaults.
        """
        self.config = self.settings.completed(config, self.name)
        self.adaptive = Adaptive.of(self.config)

    @property
    def critic_config(self) -> CriticConfig:
        """The settings of the critic.

        Raises:
            ConfigError: the algorithm's settings have none.
        """
        if not isinstance(self.config, CriticConfig):
            raise ConfigError(f"algo={self.config.name} has no settings for a critic: derive them from CriticConfig")
        return self.config

    @property
    def reads_joint_paths(self) -> bool:
        """True where a critic reads what all agents were told and said (`CriticConfig.value_path`)."""
        return self.needs.critic and self.critic_config.value_path == "joint"

    @property
    def reward_config(self) -> RewardModelConfig:
        """The settings of the reward model.

        Raises:
            ConfigError: the algorithm's settings have none.
        """
        if not isinstance(self.config, RewardModelConfig):
            raise ConfigError(
                f"algo={self.config.name} has no settings for a reward model: derive them from RewardModelConfig"
            )
        return self.config

    @property
    def needs(self) -> Needs:
        """The algorithm's needs; may depend on the settings."""
        return Needs()

    @property
    def sequence(self) -> SequenceKind | None:
        """The sequence of sums before an update: as the loss needs them, else as the corrections do."""
        return self.needs.sequence or ("session" if self.config.correction.over_sequences else None)

    @property
    def fields(self) -> tuple[ForestField, ...]:
        """The fields of forests that it reads as `Tokens.fields`. May depend on the settings."""
        return ()

    @property
    def divergence(self) -> Divergence | None:
        """The divergence from a teacher that `loss` reads as `Tokens.teacher_divergence`; None: it reads none."""
        return None

    @property
    def affine(self) -> bool:
        """True where the loss is a · advantage + b; see `PolicyLoss.affine`."""
        return False

    @property
    def summand(self) -> Summand | None:
        """The loss's sum over sequences besides log-ratios; see `PolicyLoss.summand`."""
        return None

    def read_rows(self, config: DataConfig) -> JudgedRows | None:
        """Read `data=FILE` for this algorithm; None: conversations to imitate.

        Raises:
            ConfigError: a row can't be read.
        """
        return None

    def select(self, group: Group) -> Choice:
        """Decide whether a finished group is trained on; groups that are kept decide every denominator."""
        return Choice.KEEP

    def teacher_of(self, session: Session) -> str:
        """The name of the policy whose log-probabilities of a session `credit` needs (`Needs.teacher`)."""
        raise NotImplementedError

    def teachers_by_turn(self, session: Session) -> Mapping[int, str]:
        """The names of policies that teach turns of a session in place of `teacher_of`, by the turns' nodes."""
        return {}

    def credit(self, groups: Sequence[Group], values: Mapping[NodeKey, Sequence[float]] | None = None) -> Credit:
        """Each trained node's advantage and weight.

        Args:
            groups: those that were selected, in any order.
            values: a critic's estimate for each token, or a reward model's reward, where one is needed; the node
                advantages then carry `values` and `returns`, from which it learns. Or a teacher's log-probability.
        """
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Return what the algorithm carries from step to step (a moving baseline), as JSON; a checkpoint has it.

        Only `credit` and `learned` may change it: `select` may run for a step that is never trained on, and `loss` runs
        on instances of its own, one in each of the trainer's processes, which `restore` it before every step.
        """
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned: in a resumed run, and before each step in the trainer's processes.

        Raises:
            ConfigError: there is a state, and this algorithm keeps none.
        """
        if state:
            raise ConfigError(f"algo={self.config.name} keeps no state, and the checkpoint has one: {sorted(state)}")

    def learned(self, metrics: Mapping[str, float]) -> None:
        """Adapt to a step's metrics, after it; adaptive coefficients do. Subclasses call it first."""
        self.adaptive.update(self.config, metrics)

    def snapshot(self) -> dict[str, Any]:
        """Return all that changes from step to step, as JSON: `state`, and what `adaptive` holds."""
        return {"own": self.state(), "adaptive": self.adaptive.state()}

    def load_snapshot(self, snapshot: Mapping[str, Any]) -> None:
        """Take over what `snapshot` returned.

        Raises:
            ConfigError: see `restore`.
        """
        self.restore(snapshot["own"])
        self.adaptive.restore(snapshot["adaptive"], self.config)

    def mark(self, forests: Sequence[Forest]) -> None:
        """Set `Forest.marked` before a step; see `PolicyLoss.mark`."""

    def loss(self, tokens: Tokens) -> Tensor:
        """The loss of each trained token, not weighted yet: [P].

        It must be positively homogeneous in the advantage, loss(c · advantage) = c · loss(advantage) for c >= 0, so
        that two advantage channels stand exactly for any number of branches (`algo.merge=mean` and sequence-level
        losses don't need it). KL penalty, entropy bonus and the critic's loss are added by the trainer.

        With `needs.pairs` every entry of a pair's two sequences returns the pair's loss, as a function of its own sums
        and its partner's; it then counts once.
        """
        raise NotImplementedError
