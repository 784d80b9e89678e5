"""The trainer, the algorithm with its corrections, and the imitation before."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, SerializeAsAny, model_validator

from agentrl.config.sections import Device, Dtype, Fraction, OfPlugin, Section


class TrainerConfig(Section):
    """Settings of every trainer; a trainer's own are a subclass (`TrainerPlugin.settings`)."""

    name: str = "torch"
    """The trainer's name or import path; `agentrl plugins` lists the names."""
    device: Device = "auto"
    """The device that it runs on."""
    dtype: Dtype = "float32"
    """The precision it computes in; weights and optimizer state stay in float32."""
    threads: PositiveInt | None = None
    """CPU threads of each of its processes; None is its share of the cores, or 1 for a small model."""
    max_restarts: int = Field(default=3, ge=0)
    """The number of times, between two checkpoints, that a trainer whose processes died is started anew: from the
    newest checkpoint, and trained again on the groups since."""
    token_budget: PositiveInt = 8192
    """Tokens, and patches of images, of one forest (one micro-batch); gradients accumulate over a step's forests."""


Bounds = tuple[NonNegativeFloat, PositiveFloat]


class CorrectionConfig(Section):
    """Importance weights and masks for tokens that another policy sampled than the one that is trained.

    All of them compare the proximal policy with the one that sampled a token; see docs/algorithms.md.
    """

    only_with: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("weight_min", "weight_max"), "weight=token|turn|session"),
        "weight_mean": "weight=turn|session",
        "mask_mean": "mask_turn or mask_session",
    }
    proximal: Literal["behaviour", "recomputed"] = "behaviour"
    """The policy that the loss's ratio of a token of an older version is against: the policy that sampled it, or, as in
    decoupled PPO, the trainer's policy before the step's first update (what a ratio of current tokens is always
    against)."""
    weight: Literal["none", "token", "turn", "session"] = "none"
    """The importance weight, proximal over sampling policy, that multiplies the loss: none, that of each token, or the
    product over the trained tokens of its turn or of its session's path."""
    weight_mean: bool = False
    """A turn's or session's weight is the geometric mean of its tokens' and not their product."""
    weight_min: NonNegativeFloat = 0.0
    """Weights below are raised to this."""
    weight_max: PositiveFloat | None = None
    """Weights above are truncated to this (TIS); None: not at all."""
    mask_token: Bounds | None = None
    """Tokens whose ratio is outside [low, high] are masked (IcePop; with weight=token that is IcePop as published)."""
    mask_turn: Bounds | None = None
    """Turns whose ratio is outside [low, high] are masked."""
    mask_session: Bounds | None = None
    """Sessions (each path from a root to a leaf) whose ratio is outside [low, high] are masked (MIS)."""
    mask_mean: bool = False
    """A turn's or session's ratio is, for masks, the geometric mean of its tokens' and not their product."""
    mask_negative: PositiveFloat | None = None
    """Tokens with a negative advantage are masked in sessions whose mean log-ratio of sampling to current policy, in
    nats for each token, is over this (off-policy sequence masking, DeepSeek-V3.2); None: not at all."""

    @property
    def over_sequences(self) -> bool:
        """True if any weight or mask is over turns or sessions."""
        masks = (self.mask_turn, self.mask_session, self.mask_negative)
        return self.weight in ("turn", "session") or any(mask is not None for mask in masks)

    @property
    def over_sessions(self) -> bool:
        """True if any weight or mask is over sessions."""
        return self.weight == "session" or self.mask_session is not None or self.mask_negative is not None

    @property
    def active(self) -> bool:
        """True if there is any weight or mask."""
        return self.over_sequences or self.weight == "token" or self.mask_token is not None

    @model_validator(mode="after")
    def _settings_agree(self) -> CorrectionConfig:
        bounds = {name: getattr(self, name) for name in ("mask_token", "mask_turn", "mask_session")}
        for name, (low, high) in {name: each for name, each in bounds.items() if each is not None}.items():
            if not low <= 1 <= high:
                raise ValueError(f"{name}=[{low:g}, {high:g}] must have 1 inside, the ratio where both policies agree")
        if self.weight_min > 1 or (self.weight_max is not None and self.weight_max < 1):
            raise ValueError(
                f"weight_min={self.weight_min:g} and weight_max={self.weight_max} must have 1 between them, the weight "
                "where both policies agree"
            )
        return self


class ShapingConfig(Section):
    """Additions to rewards before credit; filters, evaluation and the stored sessions see rewards without them."""

    only_with: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("overlong_buffer", "overlong_penalty"), "overlong_tokens"),
        **dict.fromkeys(("turn_alpha", "turn_outcome"), "turns=margin|quality"),
    }
    overlong_tokens: PositiveInt | None = None
    """The length from which a session is punished in full (DAPO, arXiv:2503.14476, equation 13): the most sampled
    tokens on one of its paths. None: no punishment of length."""
    overlong_buffer: int = Field(default=0, ge=0)
    """Tokens below `overlong_tokens` over which the punishment grows linearly from 0."""
    overlong_penalty: PositiveFloat = 1.0
    """The punishment in full, subtracted from the final reward."""
    length_reward: NonNegativeFloat = 0.0
    """Weight of the reward for being short within a group (Kimi k1.5, arXiv:2501.12599, section 2.3.3): 0.5 for its
    shortest session to -0.5 for its longest; sessions whose score is not above 0 only lose by it."""
    truncated_penalty: NonNegativeFloat = 0.0
    """Subtracted from the final reward of a session that a limit ended (TRUNCATED)."""
    format_penalty: NonNegativeFloat = 0.0
    """Subtracted as a step reward from each turn with a tool call that can't be read."""
    scale_rewards: bool = False
    """Divide rewards by the standard deviation of all scores since the run began, before anything is added to them."""
    turns: Literal["as_they_are", "margin", "quality"] = "as_they_are"
    """Compare a rewarded turn with the earlier turns of all agents of its session, whose mean reward is M (MARTI, ICLR
    2026): of its reward r it makes turn_outcome · r + turn_alpha · (r - M) by `margin`, + turn_alpha · r · M by
    `quality`."""
    turn_alpha: NonNegativeFloat = 0.5
    """Weight of that comparison."""
    turn_outcome: NonNegativeFloat = 1.0
    """Weight of the turn's own reward beside it."""

    @model_validator(mode="after")
    def _buffer_below_length(self) -> ShapingConfig:
        if self.overlong_tokens is not None and self.overlong_buffer >= self.overlong_tokens:
            raise ValueError(
                f"overlong_buffer={self.overlong_buffer} must be below overlong_tokens={self.overlong_tokens}"
            )
        return self

    @property
    def active(self) -> bool:
        """True if it changes any reward."""
        changes = self.length_reward or self.truncated_penalty or self.format_penalty or self.turns != "as_they_are"
        return self.overlong_tokens is not None or bool(changes) or self.scale_rewards


class AlgoConfig(Section):
    """Settings of every algorithm; an algorithm's own are a subclass."""

    only_with: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("kl_as", "kl_estimator", "kl_target"), "kl_coef"),
        "kl_gradient": "kl_coef and kl_as=loss",
        "kl_rate": "kl_target",
        **dict.fromkeys(("entropy_rate", "entropy_coef_max"), "entropy_target"),
        "constant_tokens": "normalize=constant",
    }
    name: str = "grpo"
    """The advantage's name (grpo, rloo, dapo and others), or an import path; see docs/algorithms.md."""
    lr: PositiveFloat = 1e-6
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """The learning rate's schedule over the run's steps, after warm-up."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear warm-up."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's decoupled decay."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """AdamW's moment decay rates."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradients are clipped to this global norm."""
    epochs: PositiveInt = 1
    """Passes over each batch of groups; each makes an update, or one with each of its `minibatches`."""
    minibatches: PositiveInt = 1
    """Parts of nearly equal trained tokens that a step's groups are dealt to, whole: each part makes an update of its
    own, with denominators of its own; see docs/algorithms.md."""
    kl_coef: NonNegativeFloat = 0.0
    """Weight of the KL penalty to the reference policy; 0 keeps no reference."""
    kl_as: Literal["loss", "reward"] = "loss"
    """The KL penalty goes into the loss of each trained token, or, subtracted from the turn's step reward, into
    returns and advantages (a pass of the reference before credit)."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimate of the KL at a sampled token, d = log pi - log ref (joschu.net/blog/kl-approx.html): k1 = d, k2 = d²/2
    (biased), k3 = exp(-d) - 1 + d."""
    kl_gradient: Literal["estimator", "exact"] = "estimator"
    """With kl_as=loss: the estimate's own derivative (of k3 as in GRPO: the gradient of KL(ref || pi); of k2 that of
    KL(pi || ref) on-policy; k1's has mean 0 and is refused), or that of KL(pi || ref), (pi/old) · d · grad log pi, for
    every estimator, with importance weights (arXiv:2506.09477; DeepSeek-V3.2's unbiased estimate)."""
    kl_target: PositiveFloat | None = None
    """KL per trained token (k3) that an adaptive coefficient aims at: after each step `kl_coef` is multiplied by
    1 + kl_rate · clip(KL / kl_target - 1, -0.2, 0.2) (Ziegler et al., arXiv:1909.08593). None: it is fixed."""
    kl_rate: PositiveFloat = 0.1
    """The rate at which the adaptive KL coefficient changes."""
    reference_decay: Fraction | None = None
    """The reference follows the policy as an exponential moving average: after each step it is this times itself plus
    the rest times the policy. None: it stays as it was when the phase began."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    entropy_target: PositiveFloat | None = None
    """Entropy per trained token, in nats, that the bonus maintains: after each step its weight, from `entropy_coef`
    on, grows by `entropy_rate` where entropy is below, up to `entropy_coef_max`, and falls by as much, down to 0, where
    it is above; above it there is no bonus (Skywork-OR1, arXiv:2505.22312). None: the weight is fixed."""
    entropy_rate: PositiveFloat = 1e-4
    """Step of the adaptive entropy bonus's weight; the default is that of Skywork-OR1's scripts."""
    entropy_coef_max: PositiveFloat | None = None
    """The adaptive entropy bonus's weight is at most this (Skywork-OR1's scripts: 0.005). None: it has no bound."""
    shaping: ShapingConfig = ShapingConfig()
    """The terms that are added to rewards before credit: punishments of length and format, scaling."""
    normalize: Literal["rollout", "token", "turn", "group", "constant"] = "rollout"
    """The unit that the loss is averaged over, groups without signal included; `rollout`: each session weighs the
    same."""
    constant_tokens: PositiveInt = 1024
    """The constant that normalize=constant divides by, in place of a session's length."""
    merge: Literal["mean", "channels"] = "channels"
    """Turns shared by branches with different advantages: two channels A+ and A- (exact), or their mean."""
    helper_credit: Fraction = 1.0
    """The part of an advantage that the turns of a program's sub-agents get, beside the main agent's; 0: none of them
    is trained."""
    branch_baseline: Literal["siblings", "group"] = "siblings"
    """The returns that a turn below a fork (`rollout.branch`) is compared with: its siblings there, or the group's
    sessions."""
    correction: CorrectionConfig = CorrectionConfig()
    """Corrections for tokens that another policy sampled than the one that is trained."""

    @model_validator(mode="after")
    def _coefficients_fit(self) -> AlgoConfig:
        if self.kl_coef and (self.kl_as, self.kl_estimator, self.kl_gradient) == ("loss", "k1", "estimator"):
            raise ValueError(
                "kl_estimator=k1 as a loss has a gradient of mean 0: set kl_gradient=exact, or kl_as=reward"
            )
        return self

    @property
    def by_itself(self) -> bool:
        """True where the policy that is trained is asked as well, as a teacher of its own."""
        return False

    @property
    def named_rewards(self) -> Mapping[str, Collection[str]]:
        """The rewards that settings name, by setting."""
        return {}

    @property
    def named_agents(self) -> Mapping[str, Collection[str]]:
        """The environment's agents that settings name, by setting."""
        return {}

    def asked(self, policies: Collection[str]) -> frozenset[str]:
        """The policies whose log-probabilities the algorithm asks for; `policies` have weights and play no agent."""
        return frozenset()

    @property
    def regularised(self) -> bool:
        """True if tokens without any advantage have a loss: a KL penalty or an entropy bonus."""
        return bool(self.kl_coef and self.kl_as == "loss") or bool(self.entropy_coef) or self.entropy_target is not None


class WarmStartConfig(Section):
    """Supervised learning on an environment's expert demonstrations, before reinforcement learning."""

    only_with: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("demos", "batch", "lr", "normalize", "entropy_floor"), "steps"
    )
    steps: int = Field(default=0, ge=0)
    """Optimizer steps; 0 skips the phase."""
    demos: PositiveInt = 2048
    """Demonstrations to generate."""
    batch: PositiveInt = 64
    """Demonstrations in a step."""
    lr: PositiveFloat = 3e-3
    """Peak learning rate, cosine to zero."""
    normalize: Literal["token", "rollout"] = "token"
    """The unit that the loss is averaged over: tokens (the demonstrations' likelihood), or demonstrations."""
    entropy_floor: NonNegativeFloat = 0.01
    """Entropy per demonstrated token, in nats, below which the phase ends before its last step: a policy without any
    has nothing left that reinforcement learning could choose from. 0: there is no floor."""


TrainerSection = Annotated[SerializeAsAny[TrainerConfig], OfPlugin("agentrl.train.trainers:TRAINERS")]
ALGORITHMS = OfPlugin("agentrl.train.algorithms:ALGORITHMS")
AlgoSection = Annotated[SerializeAsAny[AlgoConfig], ALGORITHMS]
