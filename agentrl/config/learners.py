"""Several policies that learn in one run: when each of them does, and what can't be done for several yet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field, PositiveInt, model_validator

from agentrl.config.cluster import ClusterConfig
from agentrl.config.engines import EngineConfig, FleetConfig, ModelConfig, WeightsConfig
from agentrl.config.lora import LoraConfig
from agentrl.config.policies import MODEL, PAST, POPULATION, START, Policies, PolicyConfig
from agentrl.config.rollout import GroupRewardConfig, RewardConfig, RolloutConfig
from agentrl.config.sections import Section
from agentrl.config.training import AlgoConfig, TrainerConfig
from agentrl.errors import ConfigError, EngineError, InvalidInput, MissingExtra, UnknownName
from agentrl.types import MAIN

OWN = ("trainer", "algo", "lora", "weights")
"""The sections that a policy that learns may have of its own; one that is not given is the main policy's."""


class ScheduleConfig(Section):
    """The steps in which each of several policies learns; others play as they are, and lose no tokens to it."""

    alternate: PositiveInt | None = None
    """Steps that one policy learns while the others stay as they are, then the next one, in the order of `policies`,
    `main` first; None: all learn in every step."""
    frozen: dict[str, list[tuple[PositiveInt, PositiveInt]]] = Field(default={})
    """Steps in which a policy does not learn, by policy: pairs of the first and the last one, counted from 1."""

    @property
    def active(self) -> bool:
        """Return whether a policy may stay as it is in some step."""
        return self.alternate is not None or bool(self.frozen)

    @model_validator(mode="after")
    def _first_before_last(self) -> ScheduleConfig:
        for name, spans in self.frozen.items():
            if odd := next((span for span in spans if span[0] > span[1]), None):
                raise ValueError(f"schedule.frozen.{name}: [{odd[0]}, {odd[1]}] ends before it begins")
        return self

    def due(self, name: str, step: int, learners: Sequence[str]) -> bool:
        """Return whether a policy learns in a step, from 0, of a run that trains `learners`."""
        if any(first <= step + 1 <= last for first, last in self.frozen.get(name, ())):
            return False
        return self.alternate is None or learners[step // self.alternate % len(learners)] == name


@dataclass(frozen=True)
class LearnerConfig:
    """The sections of a run's configuration by which one policy is trained."""

    model: ModelConfig
    engine: EngineConfig
    fleet: FleetConfig
    trainer: TrainerConfig
    algo: AlgoConfig
    lora: LoraConfig
    weights: WeightsConfig

    def beside(self, policy: PolicyConfig) -> LearnerConfig:
        """Return the sections of a policy that learns beside this one, which has those that it lacks from here."""
        own = {name: section for name in OWN if (section := getattr(policy, name)) is not None}
        return replace(self, model=policy.model, engine=policy.engine, fleet=policy.fleet, **own)


@dataclass(frozen=True)
class LearningConfig:
    """The settings that a policy's learner works by: its own, the policies that its algorithm asks, and the run's."""

    own: LearnerConfig
    asked: Policies
    seed: int
    record_logprobs: bool
    require_provenance: bool


Learners = Mapping[str, LearnerConfig]
"""The policies that are trained, by name, the main one first."""


def list_fleets(main: LearnerConfig, policies: Policies) -> dict[str, tuple[EngineConfig, FleetConfig]]:
    """Return the engines of each policy that generates with weights, and the fleet that they are."""
    able = {name: own for name, own in policies.items() if own.name in (MODEL, PAST)}
    return {MAIN: (main.engine, main.fleet)} | {name: (own.engine, own.fleet) for name, own in able.items()}


def check_learners(
    learners: Learners,
    needs: Mapping[str, Any],
    policies: Policies,
    schedule: ScheduleConfig,
    steps: int,
    alone: Mapping[str, object],
) -> None:
    """Raise a ValueError where several policies learn with what can't be done for several yet.

    `needs`: of their algorithms, by policy. `alone`: what the run does and one policy alone can have, by its setting.
    """
    main, *learned = learners
    mixed = learners[main].lora.tenants == "mixed"
    if mixed and not (learned and learners[main].lora.active):
        raise ValueError(
            "lora.tenants=mixed computes the passes of several policies that learn adapters together, and there are "
            "none: set lora.rank and policies.NAME.trainer, or leave it out"
        )
    if not learned:
        if schedule.active:
            raise ValueError(
                "schedule says when each of several policies learns, and one does: set policies.NAME.trainer"
            )
        return
    _check_schedule(schedule, tuple(learners), steps)
    lacking = dict(alone)
    for name, own in learners.items():
        asks = needs[name].teacher or needs[name].greedy or not needs[name].engine
        beyond, kind = own.lora.full or own.lora.experts, own.lora.quantize
        other = kind != learners[main].lora.quantize or (name != main and policies[name].model.name != START)
        lacking |= {
            f"algo={own.algo.name} ({name})": asks,
            f"weights.prove_every ({name})": own.weights.prove_every,
            f"lora.tenants=mixed with lora.full or lora.experts ({name})": mixed and beyond,
            f"lora.tenants=mixed without an adapter ({name})": mixed and not own.lora.active,
            f"lora.quantize={kind} on another base than {MAIN}'s ({name})": kind != "none" and other,
        }
    if found := next((what for what, is_there in lacking.items() if is_there), None):
        raise ValueError(f"policies.{learned[0]} learns beside {MAIN}: {found} is not there for several yet")


@contextmanager
def named_as_given(policies: Policies, name: str) -> Iterator[None]:
    """Have errors about a policy's settings name them as they are given: `policies.b.trainer.ranks`, say.

    A setting that the policy has from the main one keeps its name, behind that of the policy.
    """
    try:
        yield
    except (ConfigError, EngineError, InvalidInput, MissingExtra, UnknownName) as error:
        if name not in policies:
            raise
        where = f"policies.{name}"
        own = [each for each in OWN if getattr(policies[name], each) is not None]
        given = "|".join(("model", "engine", "fleet", *own))
        said = re.sub(rf"(?<![\w./])(?=(?:{given})[.=])", f"{where}.", str(error))
        raise type(error)(said if where in said else f"{where}: {said}") from None


def check_populations(policies: Policies) -> None:
    """Raise a ValueError where a population has fewer than two policies, or one that can't be drawn."""
    able = [MAIN, *(name for name, own in policies.items() if own.name == MODEL)]
    for name, own in ((name, own) for name, own in policies.items() if own.name == POPULATION):
        where = f"policies.{name}.members={list(own.members)}"
        if odd := next((each for each in own.members if each not in able), None):
            raise ValueError(f"{where}: {odd!r} is no model of this run; those that are: {', '.join(able)}")
        if len(own.members) < 2 or len({*own.members}) < len(own.members):
            raise ValueError(f"{where}: a population has two policies or more, each named once")


def check_algorithm(own: LearnerConfig, needs: Any, rollout: RolloutConfig, agent: str | None, prefix: str) -> None:
    """Raise a ValueError where a policy's algorithm or trainer can't be with the run's rollouts.

    `needs`: the algorithm's. `prefix`: of the names of the policy's sections.
    """
    algo, trainer = own.algo, own.trainer
    named = f"{prefix}algo={algo.name}"
    if needs.branches and rollout.branch.name == "none":
        raise ValueError(f"{named} needs continuations: set rollout.branch, for example to every")
    if needs.whole_sessions and rollout.branch.name != "none":
        raise ValueError(
            f"rollout.branch={rollout.branch.name} forks sessions, and {named} compares whole "
            "ones: use an algorithm that compares turns, such as grpo, or rollout.branch=none"
        )
    if needs.greedy and agent is not None:
        raise ValueError(f"{named} needs greedy sessions, and an agent program samples as it likes")
    if needs.full_support and rollout.narrowed:
        raise ValueError(
            f"rollout.{rollout.narrowed} draws from a part of the vocabulary, and {named} compares distributions over "
            f"the whole: set {prefix}algo.narrowed=whole to do so nevertheless, or {prefix}algo.divergence=sampled"
        )
    if rollout.group_size < needs.group_size:
        raise ValueError(
            f"rollout.group_size={rollout.group_size} leaves {named} no group to compare with; "
            f"use rollout.group_size>={needs.group_size}"
        )
    if algo.minibatches > (most := rollout.groups_per_step):
        raise ValueError(
            f"{prefix}algo.minibatches={algo.minibatches}: each part has whole groups, and a step has "
            f"rollout.groups_per_step={most}; use {prefix}algo.minibatches<={most}"
        )
    if trainer.token_budget < rollout.turn_tokens:
        raise ValueError(
            f"{prefix}trainer.token_budget={trainer.token_budget} must hold a turn: "
            f"at least rollout.turn_tokens={rollout.turn_tokens}"
        )


def check_joint_turns(
    asked: tuple[int, str],
    learners: Learners,
    rollout: RolloutConfig,
    at: ClusterConfig,
    agent: str | None,
    rerun: str | None,
    rewards: Mapping[str, RewardConfig],
) -> None:
    """Raise a ValueError where joint turns are to be played again in sessions, or for rewards, that can't be.

    `asked`: how often each is continued again, and how they are repeated ("" is not at all).
    """
    counterfactuals, combinations = asked
    if not counterfactuals and not combinations:
        return
    staleness, branch = rollout.staleness, rollout.branch.name
    continued = (own.algo for own in learners.values() if getattr(own.algo, "counterfactuals", 0))
    lacking = {
        "agent=, a program, which runs a loop of its own": agent is not None,
        f"rollout.staleness={staleness}, where versions change within a session": counterfactuals and staleness,
        f"rollout.branch={branch}": branch != "none",
        "cluster.environments or sessions": at.environments or at.holds_sessions,
        "rerun=": rerun is not None,
        "rewards that compare the sessions of a group": any(
            isinstance(reward, GroupRewardConfig) for reward in rewards.values()
        ),
        "algo.shaping or kl_as=reward, since what is played again has rewards as they are": any(
            algo.shaping.active or (algo.kl_coef and algo.kl_as == "reward") for algo in continued
        ),
    }
    if found := next((what for what, is_there in lacking.items() if is_there), None):
        tree, again = "algo.pairing=cross (or algo.tree) repeats turns", "algo=coma continues each joint turn again"
        raise ValueError(f"{again if counterfactuals else tree}, which is not there with {found}")


def _check_schedule(schedule: ScheduleConfig, learners: Sequence[str], steps: int) -> None:
    if odd := sorted(schedule.frozen.keys() - set(learners)):
        raise ValueError(
            f"schedule.frozen.{odd[0]}: only policies that learn are frozen in steps: {', '.join(learners)}"
        )
    if not schedule.active:
        return
    due = [[each for each in learners if schedule.due(each, step, learners)] for step in range(steps)]
    if [] in due:
        raise ValueError(f"schedule: no policy learns in step {due.index([]) + 1}; leave one that does")
    if still := next((each for each in learners if not any(each in now for now in due)), None):
        raise ValueError(
            f"schedule: {still} learns in none of the {steps} steps; give it one, or let a policy without "
            "trainer and algo play"
        )


def check_delivery(own: LearnerConfig, machines: ClusterConfig) -> None:
    """Raise a ValueError where engines are to be proved, and give no checksum, or there is no place for another one."""
    weights, fleet = own.weights, own.fleet
    if not weights.prove_every:
        return
    every = f"weights.prove_every={weights.prove_every}"
    if not weights.verify:
        raise ValueError(f"{every} compares engines' checksums, which weights.verify=false leaves out")
    if fleet.colocated or machines.name != "local":
        wrong = "fleet.colocated=true" if fleet.colocated else f"cluster={machines.name}"
        raise ValueError(
            f"{every} starts another engine on this machine, which {wrong} has no place for; "
            "`agentrl verify RUN --weights` compares with checkpoints later"
        )


def check_averages(own: LearnerConfig, machines: ClusterConfig, agent: str | None) -> None:
    """Raise a ValueError where averages are evaluated that no trainer keeps, or there is no place for their engine."""
    trainer, fleet = own.trainer, own.fleet
    if getattr(trainer, "average_decay", None) is None:
        raise ValueError(
            f"eval.weights=averaged needs trainer.average_decay, which trainer={trainer.name} "
            f"{'has not set' if hasattr(trainer, 'average_decay') else 'does not have'}"
        )
    for setting, value in (
        ("fleet.colocated", fleet.colocated),
        ("fleet.urls", fleet.urls),
        ("engine.url", getattr(own.engine, "url", None)),
        ("agent", agent),
        ("cluster.place_timeout", getattr(machines, "place_timeout", None)),
    ):
        if value:
            raise ValueError(
                f"eval.weights=averaged starts another engine for the averaged weights, which {setting}={value} "
                "has no place for; use eval.weights=policy, and agentrl eval model=CHECKPOINT/averaged later"
            )
