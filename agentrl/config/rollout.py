"""The environment, its rewards, how sessions are generated, and how a policy is measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, SerializeAsAny, model_validator

from agentrl.config.sections import LISTED, OfPlugin, PathText, Section, Temperature


class EnvConfig(Section):
    """The environment's name; every other key goes to its constructor."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)
    name: str
    """A registered name, or path/to/file.py:Class."""

    @property
    def kwargs(self) -> dict[str, Any]:
        """The arguments of the environment's constructor."""
        return dict(self.model_extra or {})


class SamplerConfig(Section):
    """Settings of every task sampler; its own settings are a subclass (`Sampler.settings`)."""

    name: str = "shuffled"
    """shuffled (each pass over the tasks in another order), sequential, difficulty (by past success), or an import
    path; see docs/environments.md."""


SamplerSection = Annotated[SerializeAsAny[SamplerConfig], OfPlugin("agentrl.rollout.stream.samplers:SAMPLERS")]


class BranchConfig(Section):
    """Settings of every fork rule; its own settings are a subclass (`ForkRule.settings`)."""

    only_with: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("continuations", "max_continuations", "nested", "trained"), "!name=none"
    )
    name: str = "none"
    """none, every (k turns), entropy, value, or an import path of a rule or of a function; see docs/branching.md."""
    continuations: PositiveInt = 1
    """Other continuations that are generated at each fork, beside the session's own."""
    max_continuations: PositiveInt = 64
    """Continuations of a session, all its forks together; turns beyond are not forked."""
    nested: bool = False
    """True: continuations are forked as well."""
    trained: bool = True
    """Train on the continuations' turns; false: they only estimate the value of the turn that they begin at."""


BranchSection = Annotated[SerializeAsAny[BranchConfig], OfPlugin("agentrl.rollout.episodes.fork_rules:FORK_RULES")]


class RolloutConfig(Section):
    """Settings of the generation of sessions."""

    renamed: ClassVar[Mapping[str, str]] = {"replay": "reuse", "replay_age": "reuse_age"}
    only_with: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("priority", "oversample"), "order=ready"),
        "reuse_age": "reuse",
    }
    groups_per_step: PositiveInt = 16
    """Groups (tasks) in a step."""
    group_size: PositiveInt = 8
    """Sessions in a group."""
    sampler: SamplerSection = SamplerConfig()
    """The rule by which each group gets a task."""
    branch: BranchSection = BranchConfig()
    """The turns at which sessions are forked, to be continued several times from there."""
    staleness: int = Field(default=0, ge=0)
    """Versions that a group may be behind when it is trained: 0 waits for each step's groups before it trains (the
    synchronous run), 1 generates the next step's meanwhile, more is fully asynchronous."""
    max_replaced: int = Field(default=2, ge=0)
    """Groups that a step may generate in place of those that the algorithm wants replaced, as a multiple of
    `groups_per_step`; beyond it the step trains on fewer."""
    order: Literal["number", "ready"] = "number"
    """The groups that a step takes: the next in the order of their numbers, or whichever have ended. `ready` waits for
    no long session, and favours short ones; groups that fall behind by more than `staleness` are generated again."""
    filter: str | None = None
    """The groups that are trained on: `signal` (their scores differ), `complete` (no session was TRUNCATED), or an
    import path of a function of the group; others are replaced, within `max_replaced`."""
    priority: str | None = None
    """The groups that go first (order=ready): `signal` (whose scores differ most), `complete`, or an import path of a
    function of the group, whose largest value goes first. None: in the order of their numbers."""
    reuse: NonNegativeFloat = 0.0
    """Past groups that each step trains on a second time, at most, as a fraction of `groups_per_step`."""
    reuse_age: PositiveInt = 1
    """Versions that a group may be behind when it is trained on a second time (reuse)."""
    oversample: NonNegativeFloat = 0.0
    """Groups begun beyond what a step needs, as a fraction of `groups_per_step` (order=ready)."""
    temperature: Temperature = 1.0
    """Sampling temperature of training rollouts; evaluation has its own."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling; below 1, as with the next three, turns are trained where the engine records their supports."""
    top_k: PositiveInt | None = None
    """Tokens that are sampled from, the most probable ones; None: all."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Tokens less probable than this fraction of the most probable one's probability are not sampled."""
    repetition_penalty: PositiveFloat = 1.0
    """The number by which the logits of tokens that came before are divided where they are above 0, else multiplied."""
    strict_calls: bool = False
    """Each tool call of the environment's turns is of a tool on offer, with arguments that fit its schema: turns are
    drawn under a grammar (extra `grammars`)."""
    max_turns: PositiveInt | None = None
    """Assistant turns of a session; None is the environment's own limit."""
    turn_tokens: PositiveInt = 512
    """New tokens of one turn."""
    session_tokens: PositiveInt = 8192
    """Tokens of a session, all its nodes together."""
    context_tokens: PositiveInt | None = None
    """Tokens of the longest path; None is the engine's own limit."""
    overlong: Literal["skip", "keep", "refuse"] = "skip"
    """The treatment of sessions whose prompt leaves no room for a first turn, and of demonstrations beyond the context:
    they have no reward and don't count, and are not imitated (`skip`); they are rewarded and imitated as they are
    (`keep`); or the first one ends the run (`refuse`)."""
    tool_timeout: PositiveFloat = 30.0
    """Seconds for one tool call."""
    turn_timeout: PositiveFloat = 120.0
    """Seconds for one turn: generating it and answering it."""
    timeout: PositiveFloat = 900.0
    """Seconds for one session."""
    group_deadline: PositiveFloat | None = None
    """Seconds for a whole group of training, its wait under `concurrency` included: then its sessions under way are
    TRUNCATED and rewarded as they are, and those that have not begun are left out. None: each has its `timeout`."""
    concurrency: PositiveInt = 256
    """Sessions running at once."""
    retries: int = Field(default=2, ge=0)
    """The number of times that a session is generated again which ended in INFRA_ERROR."""
    save_states: Literal["never", "cheap", "always"] = "cheap"
    """The environments whose states are stored before each turn, so that a resumed run continues unfinished sessions:
    all (`always`), those whose states take under 5 ms and 64 KiB (`cheap`), none (`never`)."""
    retry_detection: Literal["lost", "marked", "all"] = "lost"
    """The identical requests that are retries and get the stored reply: `lost`, those marked as retries or whose reply
    was lost; `marked`, only those marked; `all`, every one. Others get a new sample."""
    strict_fields: bool = False
    """Refuse an agent program's request with a field that its protocol doesn't know; else a harmless one is ignored."""

    def check_limits(self, where: str = "") -> None:
        """Raise a ValueError where deadlines or budgets contradict each other; its message begins with `where`."""
        if not self.tool_timeout < self.turn_timeout < self.timeout:
            raise ValueError(
                f"{where}deadlines must nest: tool_timeout < turn_timeout < timeout, "
                f"not {self.tool_timeout:g} < {self.turn_timeout:g} < {self.timeout:g} (seconds)"
            )
        if self.turn_tokens > self.session_tokens:
            raise ValueError(f"{where}turn_tokens {self.turn_tokens} exceeds session_tokens {self.session_tokens}")

    @property
    def narrowed(self) -> str:
        """The first setting by which tokens are not drawn from the softmax over the whole vocabulary; '' for none."""
        whole = {"top_p": 1.0, "top_k": None, "min_p": 0.0, "repetition_penalty": 1.0}
        given = (f"{name}={getattr(self, name):g}" for name in whole if getattr(self, name) != whole[name])
        return next(given, "strict_calls=true" if self.strict_calls else "")

    @model_validator(mode="after")
    def _settings_agree(self) -> RolloutConfig:
        self.check_limits()
        if self.group_deadline is not None and self.group_deadline <= self.turn_timeout:
            raise ValueError(
                f"group_deadline={self.group_deadline:g} must exceed turn_timeout={self.turn_timeout:g} (seconds)"
            )
        return self


class RewardConfig(Section):
    """Settings of every reward of a run; its own settings are a subclass (`Reward.settings`).

    Attributes:
        resident: whether the reward holds a model, of which there is to be one copy on a device.
    """

    resident: ClassVar[bool] = False
    only_with: ClassVar[Mapping[str, str]] = {"gate_at": "gates"}
    name: str
    """The reward's plug-in: a name (`agentrl plugins`), package.module:Class, or path/to/file.py:Class."""
    weight: float = 1.0
    """Its weight in the session's reward, which is the weighted sum."""
    timeout: PositiveFloat = 60.0
    """Seconds that it may take for a session; after them the session is an INFRA_ERROR, and generated again."""
    where: dict[str, Any] = Field(default={})
    """The tasks that it is for, by their fields: where.kind=math, where.level=[4,5], where.year.min=2024; others get
    none from it. Empty: all."""
    gates: Annotated[tuple[str, ...], LISTED] = ()
    """Rewards, also the environment's own, that count only where this one reaches `gate_at`; else each of them is 0,
    and is not computed."""
    gate_at: float = 1.0
    """The least value of this reward with which those in `gates` count."""


class GroupRewardConfig(RewardConfig):
    """Settings of a reward that sees all sessions of a group; `timeout` is for the group."""


class SandboxConfig(Section):
    """The provider of sandboxes, and their reuse between episodes."""

    name: str | None = None
    """The backend of every environment's sandboxes (`agentrl plugins`); None: each environment's own `env.sandbox`."""
    url: str | None = None
    """The sandbox server that sandbox=remote uses: https://HOST:PORT of an `agentrl sandbox serve`."""
    key_file: PathText | None = None
    """A file with that server's key, on every machine that plays sessions; None: the variable AGENTRL_SANDBOX_KEY."""
    certificate: PathText | None = None
    """A PEM file with the authority to trust for it, or with its own certificate; None: the system's authorities."""
    total: PositiveInt = 64
    """Sandboxes of one process alive at once; with sandbox=remote no more than the server has for it."""
    reuse: Literal["proven", "never"] = "proven"
    """proven: cleaned and reused where it is verified that nothing remains; never: each is used once."""

    @model_validator(mode="after")
    def _has_address(self) -> SandboxConfig:
        if self.name == "remote" and self.url is None:
            raise ValueError("sandbox=remote needs the address of a sandbox server: sandbox.url=http://HOST:PORT")
        return self


RewardSection = Annotated[SerializeAsAny[RewardConfig], OfPlugin("agentrl.envs.rewards:REWARDS")]
RewardSections = dict[Annotated[str, Field(pattern=r"^[\w-]+$")], RewardSection]


class ProbeConfig(Section):
    """A second look at an evaluation's best sessions, against rewards that are exploited; see docs/rewards.md."""

    only_with: ClassVar[Mapping[str, str]] = dict.fromkeys(("best", "alarm"), "rewards or seeds")
    rewards: RewardSections = Field(default={})
    """A second scorer, that nothing is trained on: rewards by name, as `rewards.NAME`."""
    seeds: int = Field(default=0, ge=0)
    """Under how many other seeds of the environment the recorded turns of the best sessions are played again."""
    best: PositiveInt = 32
    """The number of sessions that are looked at: the best of each task, of the best tasks."""
    alarm: PositiveFloat = 0.2
    """By how much the gap between score and second score may grow from the first evaluation on without an alarm."""

    @property
    def active(self) -> bool:
        """True if anything is looked at."""
        return bool(self.rewards) or self.seeds > 0

    @model_validator(mode="after")
    def _sessions_are_scored_alone(self) -> ProbeConfig:
        if found := [name for name, each in self.rewards.items() if isinstance(each, GroupRewardConfig)]:
            raise ValueError(f"rewards.{found[0]} compares the sessions of a group, and a probe has one of each")
        if found := [name for name, each in self.rewards.items() if getattr(each, "policy", "")]:
            raise ValueError(
                f"rewards.{found[0]}.policy: policies judge for the rewards that a run is trained on, and a second "
                f"scorer is a server's: rewards.{found[0]}.url=ADDRESS"
            )
        return self


class EvalConfig(Section):
    """Measuring a policy without training it."""

    every: PositiveInt | None = None
    """Steps of training between two evaluations; None: only before the first step and after the last."""
    weights: Literal["policy", "averaged"] = "policy"
    """The weights that a run's evaluations measure: the policy, or the moving average of its weights
    (`trainer.average_decay`), on an engine of its own, which the run starts with the settings `engine.*`."""
    tasks: PositiveInt = 128
    """Tasks of the split that are evaluated."""
    n: PositiveInt = 1
    """Sessions for each task; pass@k (one of k solves it) and pass^k (all do) are reported for every k up to n."""
    split: str | None = None
    """One of the environment's splits; None is `eval`, or the last where there is none of that name."""
    temperature: Temperature = 1.0
    """Sampling temperature; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Nucleus sampling; None is rollout.top_p."""
    top_k: PositiveInt | None = None
    """Tokens that are sampled from; None is rollout.top_k."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """The least probability, as a fraction of the greatest; None is rollout.min_p."""
    max_turns: PositiveInt | None = None
    """Assistant turns of a session; None is rollout.max_turns."""
    turn_tokens: PositiveInt | None = None
    """New tokens of one turn; None is rollout.turn_tokens."""
    session_tokens: PositiveInt | None = None
    """Tokens of a session; None is rollout.session_tokens."""
    turn_timeout: PositiveFloat | None = None
    """Seconds for one turn; None is rollout.turn_timeout."""
    timeout: PositiveFloat | None = None
    """Seconds for one session; None is rollout.timeout."""
    concurrency: PositiveInt | None = None
    """Sessions of an evaluation running at once, beside those of training; None: they share rollout.concurrency, and
    an evaluation's go first."""
    solved_at: float = 1.0
    """A session solves its task (for pass@k and pass^k) with a score of at least this."""
    prompt_price: NonNegativeFloat | None = None
    """The price of a million tokens of prompts, in any currency; with either price an evaluation reports its cost."""
    completion_price: NonNegativeFloat | None = None
    """The price of a million generated tokens."""

    probe: ProbeConfig = ProbeConfig()
    """A second look at the best sessions of each evaluation."""

    @property
    def label(self) -> str:
        """Suffix of an evaluation's name that says which weights it measures."""
        return " (averaged weights)" if self.weights == "averaged" else ""

    def limits(self, rollout: RolloutConfig) -> RolloutConfig:
        """The rollouts' settings with those of the evaluation in their place.

        Raises:
            ValueError: together they contradict each other.
        """
        own = (
            "top_p",
            "top_k",
            "min_p",
            "max_turns",
            "turn_tokens",
            "session_tokens",
            "turn_timeout",
            "timeout",
            "concurrency",
        )
        given = {name: value for name in own if (value := getattr(self, name)) is not None}
        changed = rollout.model_copy(update=given | {"temperature": self.temperature, "group_deadline": None})
        changed.check_limits("eval and rollout: ")
        return changed
