"""The configuration of a whole run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from agentrl.config.api import ApiConfig
from agentrl.config.cluster import ClusterConfig
from agentrl.config.data import DataConfig
from agentrl.config.engines import EngineConfig, EngineSection, FleetConfig, ModelConfig, WeightsSection
from agentrl.config.gateway import GatewayConfig
from agentrl.config.learners import (
    LearnerConfig,
    LearningConfig,
    ScheduleConfig,
    check_algorithm,
    check_averages,
    check_delivery,
    check_joint_turns,
    check_learners,
    check_populations,
    list_fleets,
)
from agentrl.config.lora import LoraConfig
from agentrl.config.policies import MODEL, PAST, PolicyConfig, address_judge, check_names
from agentrl.config.rollout import (
    EnvConfig,
    EvalConfig,
    GroupRewardConfig,
    RewardSections,
    RolloutConfig,
    SandboxConfig,
)
from agentrl.config.secrets import Command
from agentrl.config.sections import LISTED, NAMED, PathText, Section
from agentrl.config.tools import ToolSections
from agentrl.config.training import ALGORITHMS, AlgoSection, TrainerSection, WarmStartConfig
from agentrl.errors import UntrustedCode, suggest
from agentrl.types import MAIN

DATA = "data"
"""The text in place of an environment's name where sessions are read."""


class WatchdogConfig(Section):
    """Response to a run that makes no progress at all."""

    only_with: ClassVar[Mapping[str, str]] = {"end": "timeout"}
    timeout: PositiveFloat | None = 1800.0
    """Seconds without any progress after which the stacks of all threads and tasks are written into the run folder
    (`stacks-N.txt`), and again each time as many have passed; None: never. SIGUSR1 has them written at any time."""
    end: bool = False
    """End the run then, as SIGTERM does (it saves if it can), instead of waiting on."""


class RunConfig(Section):
    """A whole run."""

    only_with: ClassVar[Mapping[str, str]] = {
        "rerun_answers": "rerun",
        "accept_changed_data": "resume or rerun or run_dir",
        "checkpoint_url_timeout": "checkpoint_url",
    }
    env: Annotated[EnvConfig, NAMED]
    """The environment: a registered name or path/to/file.py:Class; `env.KEY` goes to its constructor. A run that reads
    its sessions (`data=`) has none."""
    data: Annotated[DataConfig, NAMED] | None = None
    """Conversations or recorded sessions to train on, in place of an environment's: a file, a folder, hf://OWNER/NAME,
    or a run's folder; see docs/offline.md."""
    model: Annotated[ModelConfig, NAMED] = ModelConfig()
    """The weights to start from."""
    engine: EngineSection = Field({}, validate_default=True)
    """The engine."""
    fleet: FleetConfig = FleetConfig()
    """Several engines as one."""
    weights: WeightsSection = Field({}, validate_default=True)
    """The transport of new weights to the engines."""
    trainer: TrainerSection = Field({}, validate_default=True)
    """The trainer."""
    algo: AlgoSection = Field({}, validate_default=True)
    """The algorithm."""
    lora: LoraConfig = LoraConfig()
    """An adapter that is trained in the whole model's place; see docs/lora.md."""
    rollout: RolloutConfig = RolloutConfig()
    """The generation of sessions."""
    warm_start: WarmStartConfig = WarmStartConfig()
    """Imitation of an environment's expert, before reinforcement learning."""
    eval: EvalConfig = EvalConfig()
    """Evaluation before, during and after training."""
    cluster: Annotated[ClusterConfig, NAMED] = ClusterConfig()
    """The machines: this one, or a Ray cluster's."""
    sandbox: Annotated[SandboxConfig, NAMED] = SandboxConfig()
    """The kind of sandboxes, and their reuse; by default an environment's own `env.sandbox` chooses their kind."""
    watchdog: WatchdogConfig = WatchdogConfig()
    """The answer to a run that makes no progress at all."""
    agent: Command | None = None
    """A program that acts in the model's place: path/to/file.py:function or a command line; see docs/agents.md."""
    gateway: GatewayConfig = GatewayConfig()
    """The address at which such programs reach the model."""
    policies: dict[str, PolicyConfig] = Field({})
    """Policies by name: opponents, user simulators, past versions, others that learn; see docs/several_agents.md."""
    schedule: ScheduleConfig = ScheduleConfig()
    """The steps in which each of several policies learns."""
    agents: dict[str, str] = Field({})
    """The policy that plays each of an environment's agents, or of a program's, whose requests name them as their
    model; `main`, which is trained, plays those not named here."""
    rewards: RewardSections = Field({})
    """Rewards by name, beside the environment's own; one that has the name of an environment's replaces it."""
    tools: ToolSections = Field({})
    """Tools by name, beside the environment's own: MCP servers, OpenAPI services, functions; see docs/tools.md."""
    policy: str = "model"
    """The policy that acts in `agentrl eval`: model, expert, noop, a model's name, or the URL of an API; see
    docs/evaluation.md."""
    api: ApiConfig = ApiConfig()
    """The API of policy=URL."""
    steps: PositiveInt = 100
    """Steps of reinforcement learning."""
    seed: int = Field(default=0, ge=0)
    """The seed of all random choices that are ours."""
    run_dir: PathText | None = None
    """The run's folder; None is runs/<env>-<time>."""
    resume: PathText | None = None
    """A run folder to resume, from its newest checkpoint, or a run's `checkpoint_url`, which is downloaded first."""
    rerun: PathText | None = None
    """A run folder to run again as it was recorded, in another folder, compared token for token; see docs/runs.md."""
    rerun_answers: Literal["compare", "recorded"] = "compare"
    """A rerun's environments and agent programs act again, and are compared with the recording, or do nothing: their
    recorded messages are taken."""
    checkpoint_every: PositiveInt = 20
    """Steps between checkpoints; the last step always has one."""
    keep_checkpoints: PositiveInt = 2
    """Checkpoints that are kept."""
    keep_best: str | None = Field(default=None, pattern=r"^-?eval/.+$")
    """A metric of evaluations, eval/mean for example: the checkpoint with its highest value is kept besides the newest;
    -eval/loss: with its lowest."""
    checkpoint_url: str | None = None
    """Object storage that checkpoints are copied to (fsspec: s3://bucket/runs/name, gs://…, file://…), each with what a
    run needs to be resumed from there on another machine; see docs/runs.md."""
    checkpoint_url_timeout: PositiveFloat = 600.0
    """Seconds that the end of a run waits for the last copy."""
    grace: NonNegativeFloat = 20.0
    """Seconds that a run which gets SIGTERM, as schedulers send it, may take to finish its optimizer step and save."""
    faults: PathText | None = None
    """A YAML file of faults to inject, to try what a run survives; see docs/faults.md."""
    dry_run: bool = False
    """Start nothing: `agentrl train` prints who would be where, memory, traffic and warnings; see docs/cluster.md."""
    metrics: Annotated[tuple[str, ...], LISTED] = ("tensorboard",)
    """The trackers that get metrics besides metrics.jsonl: tensorboard, wandb, mlflow, trackio, prometheus or import
    paths; see docs/metrics.md."""
    metrics_address: str = Field(default="127.0.0.1:9464", pattern=r"^.+:\d{1,5}$")
    """host:port at which metrics=[prometheus] answers GET /metrics; port 0 takes a free one."""
    metrics_project: str = "agentrl"
    """The project (W&B, Trackio) or experiment (MLflow) that the run belongs to."""
    tracing: str | None = Field(default=None, pattern=r"^https?://[^\s/]+")
    """A collector that gets OpenTelemetry spans of turns, tools and steps over OTLP/HTTP, such as http://127.0.0.1:4318;
    None: there are no spans; see docs/metrics.md."""
    mismatch_bound: PositiveFloat = 1e-2
    """A mean |log-probability difference| of engine and trainer over this gives a warning."""
    record_logprobs: bool = False
    """Store the trainer's log-probability of each trained token before its step (logprobs.db, 4 bytes a token), for the
    viewer to show each token's ratio and how far engine and trainer differ. It costs a forward pass of each step."""
    accept_changed_data: bool = False
    """Resume or repeat a run although its tasks changed since; for this time alone; see docs/runs.md."""
    allow_no_signal: bool = False
    """Go on, with a warning, where a run would end because none of the tokens that it samples is trained; see
    docs/runs.md."""
    require_provenance: bool = False
    """End the run rather than train on a token whose weights the record does not prove: published, with an engine's
    checksum, and without caches that older weights computed; see docs/runs.md."""

    @model_validator(mode="before")
    @classmethod
    def _data_needs_no_environment(cls, settings: Any) -> Any:
        """Name what a run reads where others name their environment."""
        if isinstance(settings, Mapping) and settings.get("data") is not None:
            env = settings.get("env")
            if env is not None and (env if isinstance(env, str) else dict(env).get("name")) != DATA:
                raise ValueError("data= takes the place of an environment: give env= or data=, not both")
            return {**settings, "env": {"name": DATA}}
        return settings

    @property
    def played_by(self) -> str:
        """The model that is trained, or the model, script or API that `agentrl eval` measures."""
        return self.model.name if self.policy == "model" else self.policy

    @property
    def program(self) -> tuple[str, GatewayConfig, ClusterConfig] | None:
        """The agent program, where one acts, with the settings of its gateway and of where that is."""
        return None if self.agent is None else (self.agent, self.gateway, self.cluster)

    @property
    def views(self) -> bool:
        """True if a critic reads what environments tell it (`Env.critic_view`)."""
        return any(getattr(own.algo, "value_view", 0) > 0 for own in self.learners.values())

    @property
    def counterfactuals(self) -> int:
        """The times that each joint turn is continued again for each agent; 0 where no algorithm asks for it."""
        return max(getattr(own.algo, "counterfactuals", 0) for own in self.learners.values())

    @property
    def combinations(self) -> str:
        """The pairing of completions in a group's tree of joint turns; "" where no algorithm asks for a tree."""
        algos = (own.algo for own in self.learners.values())
        pairings = {algo.pairing for algo in algos if getattr(algo, "grows", False)}  # type: ignore[attr-defined]
        return max(pairings, default="")  # with all combinations those of `aligned` are there

    @property
    def asked_policies(self) -> frozenset[str]:
        """The policies whose log-probabilities the algorithm asks for."""
        playing = {*self.agents.values(), *(getattr(each, "policy", "") for each in self.rewards.values())}
        able = (name for name, own in self.policies.items() if own.name == MODEL or own.remote)
        return self.algo.asked([name for name in able if name not in playing])

    @property
    def teachers(self) -> dict[str, PolicyConfig]:
        """The policies of `asked_policies`, by name."""
        return {name: self.policies[name] for name in sorted(self.asked_policies)}

    @model_validator(mode="after")
    def _contradictions(self) -> RunConfig:
        learners, find = self.learners, ALGORITHMS.plugins().find
        try:
            needs = {name: find(own.algo.name)(own.algo).needs for name, own in learners.items()}
        except UntrustedCode:  # a record's, whose run was checked when it began
            return self
        for name, own in learners.items():
            check_algorithm(own, needs[name], self.rollout, self.agent, "" if name == MAIN else f"policies.{name}.")
        if self.rollout.temperature == 0:
            raise ValueError("rollout.temperature=0 can't be trained on; 0 is for evaluation (eval.temperature)")
        self.eval.limits(self.rollout)
        if self.keep_best is not None and self.eval.every is None:
            raise ValueError(f"keep_best={self.keep_best} needs eval.every, as often as checkpoint_every")
        if self.eval.weights == "averaged":
            check_averages(learners[MAIN], self.cluster, self.agent)
        if self.rollout.staleness and self.fleet.shared == self.fleet.count:
            raise ValueError(
                f"rollout.staleness={self.rollout.staleness} generates while the trainer learns, and with "
                "fleet.colocated=true engines sleep meanwhile; fleet.colocated_engines leaves others that don't"
            )
        if self.cluster.gateways and self.agent is not None:
            self._gateways_can_be_used()
        self._past_versions_can_be_kept()
        self._adapter_has_one_base()
        check_delivery(learners[MAIN], self.cluster)
        self._policies_are_played()
        asked = self.counterfactuals, self.combinations
        check_joint_turns(asked, learners, self.rollout, self.cluster, self.agent, self.rerun, self.rewards)
        check_learners(learners, needs, self.policies, self.schedule, self.steps, self._set_for_one_learner)
        self._groups_can_be_compared(needs[MAIN].greedy)
        context = self.rollout.context_tokens
        if context is not None and self.engine.max_context is not None and context > self.engine.max_context:
            raise ValueError(f"rollout.context_tokens={context} exceeds engine.max_context={self.engine.max_context}")
        return self

    @property
    def _set_for_one_learner(self) -> dict[str, object]:
        """Settings that can't be where several policies learn, by their names; true where one is set."""
        at, sessions = self.cluster, "cluster.sessions, which is on with cluster=ray and environment workers unless"
        return {
            f"cluster.gateways={at.gateways}": at.gateways,
            f"{sessions} it is false": at.holds_sessions,
            "rollout.reuse": self.rollout.reuse,
            "fleet.colocated=true": self.fleet.shared,
            "agent=, a program, with rollout.staleness": self.agent is not None and self.rollout.staleness,
            "data=": self.data is not None,
            "rerun=": self.rerun is not None,
            "record_logprobs=true": self.record_logprobs,
            "eval.weights=averaged": self.eval.weights == "averaged",
        }

    def _policies_are_played(self) -> None:
        check_names(self.policies)
        for agent, policy in self.agents.items():
            if policy not in (MAIN, *self.policies):
                known, hint = ", ".join((MAIN, *self.policies)), suggest(policy, (MAIN, *self.policies))
                raise ValueError(f"agents.{agent}={policy!r}: there is no such policy{hint} (policies: {known})")
        check_populations(self.policies)
        asked = self.asked_policies
        for name in sorted(asked):
            if name not in self.policies or not (self.policies[name].name == MODEL or self.policies[name].remote):
                found = f"is {self.policies[name].name!r}" if name in self.policies else "is not there"
                raise ValueError(
                    f"algo={self.algo.name} asks policies.{name} for log-probabilities, and it {found}: set "
                    f"policies.{name}.model=FOLDER or URL"
                )
        if asked and self.cluster.holds_sessions:
            raise ValueError(
                f"algo={self.algo.name} asks other models, and another process holds the sessions: set "
                "cluster.sessions=false"
            )
        judges = {name: str(judge) for name, each in self.rewards.items() if (judge := getattr(each, "policy", ""))}
        for name in judges:
            judged = address_judge(name, self.rewards[name], self.policies)
            self.__dict__["rewards"] = {**self.rewards, name: judged}
        now = {each.past.of for each in self.policies.values() if each.name == PAST and each.past.current}
        drawn = {member for each in self.policies.values() for member in each.members}
        unused = set(self.policies) - {*self.agents.values(), *judges.values()} - asked - now - drawn
        if self.agent is not None:  # whose requests may name any policy
            self.__dict__["agents"] = {**{name: name for name in sorted(unused)}, **self.agents}
        elif unused:
            name = min(unused)
            raise ValueError(f"policies.{name} plays no agent; set agents.NAME={name}")

    @property
    def learned(self) -> tuple[str, ...]:
        """The policies besides the main one that are trained."""
        return tuple(name for name, policy in self.policies.items() if policy.learns)

    @property
    def learners(self) -> dict[str, LearnerConfig]:
        """The sections by which each policy is trained, the main one's first."""
        main = LearnerConfig(self.model, self.engine, self.fleet, self.trainer, self.algo, self.lora, self.weights)
        return {MAIN: main, **{name: main.beside(self.policies[name]) for name in self.learned}}

    def learning(self, name: str) -> LearningConfig:
        """Return the settings that the learner of a policy works by; several that learn ask no others."""
        asked = self.teachers if name == MAIN else {}
        return LearningConfig(self.learners[name], asked, self.seed, self.record_logprobs, self.require_provenance)

    def of_policy(self, name: str) -> RunConfig:
        """The configuration of a run that trains a policy of `learned` alone."""
        return self.model_copy(update={**vars(self.learners[name]), "model": self.model})

    @property
    def fleets(self) -> dict[str, tuple[EngineConfig, FleetConfig]]:
        """The engines of each policy that generates with weights; see `list_fleets`."""
        return list_fleets(self.learners[MAIN], self.policies)

    def learns(self, name: str, step: int) -> bool:
        """Return whether a policy that is trained learns in a step, from 0."""
        return not self.learned or self.schedule.due(name, step, (MAIN, *self.learned))

    def learning_steps(self, name: str, upto: int | None = None) -> int:
        """Return in how many of the first `upto` steps, of all without it, a policy learns."""
        steps = self.steps if upto is None else upto
        return sum(self.learns(name, step) for step in range(steps)) if self.schedule.active else steps

    def _groups_can_be_compared(self, greedy: bool) -> None:
        """Raise a ValueError where sessions that rewards or shaping compare as wholes are forked, or stand alone."""
        forks = self.rollout.branch.name
        if (turns := self.algo.shaping.turns) != "as_they_are" and forks != "none":
            raise ValueError(f"algo.shaping.turns={turns} compares a session's turns, and branch={forks} forks them")
        found = next((name for name, each in self.rewards.items() if isinstance(each, GroupRewardConfig)), None)
        if found is None:
            return
        where = f"rewards.{found}={self.rewards[found].name} compares the sessions of a group"
        if forks != "none":
            raise ValueError(f"{where}, and rollout.branch={forks} forks them: use branch=none")
        if greedy:
            raise ValueError(f"{where}, and algo={self.algo.name} has a greedy baseline, which is compared with none")
        if self.cluster.holds_sessions:
            raise ValueError(f"{where}, which another process holds: set cluster.sessions=false")

    def _adapter_has_one_base(self) -> None:
        """Raise a ValueError where a warm start would change the base that an adapter belongs to."""
        if self.lora.adapter is not None and self.warm_start.steps:
            raise ValueError(
                f"lora.adapter={self.lora.adapter} belongs to the base as it is, and a warm start trains the whole "
                "model: set warm_start.steps=0, or merge it first (agentrl models merge)"
            )
        if self.lora.quantize != "none" and self.warm_start.steps:
            raise ValueError(
                f"lora.quantize={self.lora.quantize} holds the base in four bits, and a warm start trains the whole "
                "model: set warm_start.steps=0, or start from a checkpoint of a run that imitated"
            )

    def _gateways_can_be_used(self) -> None:
        """Raise a ValueError where programs on other nodes can't reach gateway workers."""
        workers = f"cluster.gateways={self.cluster.gateways}"
        if self.cluster.address is not None and self.gateway.on_loopback:
            raise ValueError(
                f"{workers}: on a cluster's nodes (cluster.address={self.cluster.address}) a program may be on another "
                f"one than its gateway, and gateway.host={self.gateway.host} is reached from its own alone: set "
                "gateway.host=node, or cluster.gateways=0"
            )

    def _past_versions_can_be_kept(self) -> None:
        """Raise a ValueError where versions of the policy are to play (policies.NAME=past) and can't be kept."""
        past = {name: policy.past.of for name, policy in self.policies.items() if policy.name == PAST}
        for name, of in past.items():
            if of not in (MAIN, *self.learned):
                known = ", ".join((MAIN, *self.learned))
                raise ValueError(
                    f"policies.{name}.past.of={of}: only a policy that learns has earlier versions: {known}"
                )
            if twin := next((other for other in past if other != name and past[other] == of), None):
                raise ValueError(f"policies.{name} and policies.{twin} are both {PAST} of {of}; one policy can be")
        if past and self.checkpoint_url:
            raise ValueError(
                f"policies.{min(past)}={PAST} plays by versions in the run's folder, "
                "which checkpoint_url= does not copy"
            )
