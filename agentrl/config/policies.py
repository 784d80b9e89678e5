"""Policies beside the main one; `agents.NAME` says which of an environment's agents they play.

One that has a section of a trainer, an algorithm or an adapter learns, from the same sessions as the main one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, PositiveInt, model_validator

from agentrl.config.api import URL, ApiConfig
from agentrl.config.engines import EngineSection, FleetConfig, ModelConfig, WeightsSection
from agentrl.config.lora import LoraConfig
from agentrl.config.sections import LISTED, NAMED, Fraction, Section, Temperature
from agentrl.config.training import AlgoSection, TrainerSection
from agentrl.types import MAIN

START = "start"
"""The model of a frozen policy that is the run's initial model."""
MODEL, PAST = "model", "past"
"""The names of policies that generate with weights: a model's, or earlier ones of the trained policy."""
POPULATION = "population"
"""The name of policies that are several others, of which each group meets one."""
SCRIPTS = ("expert", "noop")
"""The names of evaluated policies that need no model."""
NAMES = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The form of a policy's name, which is also that of a folder, a part of dotted settings and a prefix of metrics."""
METRICS = frozenset(
    (
        *("adaptive", "averaged", "branch", "branches", "correction", "count", "counterfactual", "critic", "distill"),
        *("engine", "env", "eval", "gateway", "group", "groups", "image", "mismatch", "moe", "pack", "policy"),
        *("preference", "probe", "reasoning", "reuse", "reward", "reward_model", "scores", "sessions", "signal"),
        *("staleness", "status", "stream", "throughput", "time", "tokens", "tool_errors", "vine"),
    )
)
"""The first words of the main policy's metrics, and the name of its average: no other learner is called by one."""


def _is_url(model: Any) -> bool:
    return isinstance(model, str) and model.startswith(URL)


class PastConfig(Section):
    """Earlier versions of the trained policy, which the run keeps to play against them."""

    every: PositiveInt = 10
    """Steps between two versions that are kept; the first is what reinforcement learning begins with."""
    size: PositiveInt = 4
    """The number of newest versions that play, beside the first, which always does; each has an engine of its own."""
    current: Fraction = 0.0
    """The part of the groups in which the trained policy plays instead, and learns from that side too."""
    of: str = MAIN
    """The policy whose versions they are: `main`, or another policy that learns."""


class PolicyConfig(Section):
    """A policy that plays some of an environment's agents; it is trained where it has `trainer`, `algo` or `lora`."""

    name: str = MODEL
    """The player: `model` (weights that stay as they are), `past` (earlier versions of the trained policy),
    `population` (in each group one of its members), `expert` and `demonstrator` (the environment's), `noop` (empty
    messages), a function's import path, or the URL of an API."""
    model: Annotated[ModelConfig, NAMED] = ModelConfig(name=START)
    """The weights: `start` is the run's initial model; otherwise a name from `agentrl models`, or a folder."""
    past: PastConfig = PastConfig()
    """The versions of `past`."""
    members: Annotated[tuple[str, ...], LISTED] = ()
    """The policies of a `population`: main, or models of `policies`, whether they learn or not."""
    api: ApiConfig = ApiConfig()
    """The API of a URL."""
    engine: EngineSection = Field({}, validate_default=True)
    """The engine of `model`, and of each version of `past`."""
    fleet: FleetConfig = FleetConfig()
    """The engines of `model`: how many, or the addresses of servers that run already, and the handling of failures."""
    temperature: Temperature = 1.0
    """Its sampling temperature, in training and evaluation."""
    trainer: TrainerSection | None = None
    """Its own trainer; with `algo` and `lora` or without them, the policy learns."""
    algo: AlgoSection | None = None
    """Its own algorithm; likewise. What is not given is as the main policy's."""
    lora: LoraConfig | None = None
    """Its own adapter; likewise. `rank=0` trains the whole model beside a main policy with an adapter."""
    weights: WeightsSection | None = None
    """The way of its weights to its engine, where it learns; None is as the main policy's."""

    @property
    def learns(self) -> bool:
        """True if it is trained."""
        return any(section is not None for section in (self.trainer, self.algo, self.lora))

    @property
    def remote(self) -> bool:
        """True if it is the address of an API."""
        return self.name.startswith(URL)

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        value = {"name": value} if isinstance(value, str) else value
        if isinstance(value, Mapping) and _is_url(value.get("model")) and "name" not in value:
            value = {**value, "name": value["model"], "model": ModelConfig(name=START)}
        return value

    @model_validator(mode="after")
    def _settings_are_of_use(self) -> PolicyConfig:
        if self.learns and self.name != MODEL:
            raise ValueError(f"a policy that is {self.name!r} has no weights to train: remove trainer, algo and lora")
        if self.weights is not None and not self.learns:
            raise ValueError("weights.* is of no use to a policy that does not learn: its engine keeps its weights")
        if self.lora is not None and self.lora.tenants != LoraConfig().tenants:
            raise ValueError("lora.tenants is one for all policies of a run: set it under lora, not here")
        if self.fleet.colocated:
            raise ValueError("fleet.colocated=true is for a run's main policy: others have GPUs of their own, or none")
        used = {"model": self.name == MODEL, "fleet": self.name == MODEL, "past": self.name == PAST, "api": self.remote}
        used["members"] = self.name == POPULATION
        for field in used:
            if not used[field] and getattr(self, field) != type(self).model_fields[field].default:
                raise ValueError(
                    f"{field}{'' if field == 'members' else '.*'} is of no use to a policy that is {self.name!r}"
                )
        return self


Policies = Mapping[str, PolicyConfig]
"""A run's policies by name; see `RunConfig.policies`."""


def check_names(policies: Policies) -> None:
    """Raise a ValueError where a policy can't have the name that it is given."""
    for name, own in policies.items():
        if name == MAIN:
            raise ValueError(f"policies.{MAIN} is the policy that is trained; give a frozen one another name")
        if not NAMES.fullmatch(name):
            raise ValueError(f"policies: a policy has 1 to 64 letters, digits, '_' and '-' as its name, not {name!r}")
        if own.learns and name in METRICS:
            raise ValueError(f"policies.{name} learns, and metrics {name}/… are the run's own: give it another name")


def list_players(policies: Policies, policy: str) -> tuple[str, ...]:
    """Return the policies that a policy is: a population's members, or itself."""
    return (policy,) if policy == MAIN else policies[policy].members or (policy,)


def address_judge(reward: str, asking: Any, policies: Policies) -> Any:
    """Return a reward's settings with the address of the policy that judges for it, where that is an API."""
    where, policy = f"rewards.{reward}.policy={asking.policy!r}", policies.get(asking.policy)
    if policy is None:
        raise ValueError(
            f"{where}: there is no such policy (policies: {', '.join(policies) or 'none'}); "
            f"policies.{asking.policy}.model=FOLDER or policies.{asking.policy}=URL makes one"
        )
    if policy.remote and policy.api.protocol == "openai":
        api = policy.api
        own = {"url": policy.name, "model": api.model, "key_env": api.key_env, "extra": api.extra}
        return asking.model_copy(update=own)
    if policy.name != MODEL or policy.learns:
        raise ValueError(
            f"{where}: a policy that judges is a model that is not trained, policies.{asking.policy}.model=FOLDER, or "
            f"an API with OpenAI's protocol, policies.{asking.policy}=URL"
        )
    return asking
