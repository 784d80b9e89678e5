"""Policies that play agents in the trained one's place: models, earlier versions of it, rules, and APIs.

`policies.NAME` says what a policy is, `agents.AGENT=NAME` whom it plays. Nothing that it writes is trained on unless it
learns itself: what a frozen model generated is stored untrainable, and messages of rules and APIs have no tokens.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.common.imports import load
from agentrl.config import MODEL, PAST, POPULATION, START, Policies, PolicyConfig, RolloutConfig, WeightsConfig
from agentrl.config.learners import LearnerConfig, list_fleets, named_as_given
from agentrl.envs.base import Env, has_demonstrator, has_expert
from agentrl.envs.episode import DEMONSTRATOR, EXPERT, NOOP, ScriptedActor
from agentrl.envs.state import resolve
from agentrl.envs.turns import Actor
from agentrl.errors import AgentRLError, ConfigError, UnknownName, unknown_name
from agentrl.models.registry import model_folder
from agentrl.rollout.episodes.judges import start_folder
from agentrl.rollout.episodes.past import PastVersions
from agentrl.rollout.episodes.policies import Fixed, ModelActor, Opponent, Partners, Policy, Population, sampling_of
from agentrl.rollout.fleet import count_beside, elastic, make_engines
from agentrl.rollout.remote import check_api, remote_actor
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.types import MAIN, Engine, Message, Sampling

RULES: Mapping[str, Actor] = {"expert": EXPERT, "demonstrator": DEMONSTRATOR, "noop": NOOP}
"""Policies that need neither weights nor a function of the user's."""
NEED_OTHERS: Mapping[str, int] = {PAST: 1, POPULATION: 2}
"""Policies that are made of others, in the order in which they are opened."""


@asynccontextmanager
async def open_partners(
    policies: Policies,
    agents: Mapping[str, str],
    main: LearnerConfig,
    limits: RolloutConfig,
    seed: int,
    start: Path | None,
    folder: Path,
    lacking: str = "",
) -> AsyncIterator[Partners]:
    """Open what plays each agent that another policy than the `main` one plays; all is closed in the end.

    `start`: the folder of the model that the run begins with, where there is one; else `lacking` says why there is
    none. `folder`: the run's.
    """
    async with AsyncExitStack() as stack:
        made: dict[str, Opponent] = {}
        playing = {*agents.values(), *(each for own in policies.values() for each in own.members)}
        for name, own in sorted(policies.items(), key=lambda each: NEED_OTHERS.get(each[1].name, 0)):
            if name not in playing and not own.learns:
                continue  # it is asked by the algorithm
            if own.name == POPULATION:
                made[name] = Population(name, [made.get(each) for each in own.members], seed)
            elif own.name == PAST:
                of, learner = own.past.of, made.get(own.past.of)
                whose = main.model if of == MAIN else policies[of].model
                versions = PastVersions(
                    name,
                    own.past,
                    folder / PAST if of == MAIN else folder / PAST / of,
                    partial(_open_frozen, own.model_copy(update={"model": whose})),
                    ModelActor(_sampling(own, limits)),
                    seed=seed,
                    staleness=limits.staleness,
                    learner=(learner.policy, learner.actor) if isinstance(learner, Fixed) else None,
                )
                stack.push_async_callback(versions.close)
                made[name] = versions
            elif own.remote or own.name != MODEL:
                made[name] = await _open_rules(name, own, limits, stack)
            else:
                model, beside = start_folder(name, own, start, lacking), count_beside(name, list_fleets(main, policies))
                with named_as_given(policies, name):
                    made[name] = await _open_model(name, own, limits, main.weights, model, beside, stack)
        yield {agent: made[name] for agent, name in agents.items() if name != MAIN}


@asynccontextmanager
async def open_rules(policies: Policies, agents: Mapping[str, str], limits: RolloutConfig) -> AsyncIterator[Partners]:
    """The partners that need no engine: rules and APIs; for processes that have none (`environment_workers`)."""
    rules = {name: own for name, own in policies.items() if own.remote or own.name not in (MODEL, *NEED_OTHERS)}
    async with AsyncExitStack() as stack:
        made = {name: await _open_rules(name, own, limits, stack) for name, own in rules.items()}
        yield {agent: made[name] for agent, name in agents.items() if name in made}


async def _open_rules(name: str, own: PolicyConfig, limits: RolloutConfig, stack: AsyncExitStack) -> Opponent:
    policy = Policy(NullRenderer(), name=name, frozen=True)
    if not own.remote:
        return Fixed(policy, script(name, own.name))
    api = remote_actor(own.name, own.api, _sampling(own, limits), setting=f"policies.{name}", counted=f"{name}/")
    return Fixed(policy, await stack.enter_async_context(api))


def _sampling(own: PolicyConfig, limits: RolloutConfig) -> Sampling:
    return Sampling(temperature=own.temperature, max_new_tokens=limits.turn_tokens)


async def _open_model(
    name: str,
    own: PolicyConfig,
    limits: RolloutConfig,
    weights: WeightsConfig,
    model: Path,
    beside: int,
    stack: AsyncExitStack,
) -> Opponent:
    """Open a policy with weights; `weights`: how the run's reach its engines; `beside`: see `divide_cores`."""
    published = _weights_of(name, own.weights or weights) if own.learns else WeightsConfig()
    engine = make_engines(own.engine, own.fleet, published, model, beside)
    stack.push_async_callback(engine.close)
    await stack.enter_async_context(elastic(engine, own.engine, own.fleet, model))
    sampling = sampling_of(limits) if own.learns else _sampling(own, limits)
    return Fixed(_open_frozen(own, name, model, engine), ModelActor(sampling))


def _weights_of(name: str, weights: WeightsConfig) -> WeightsConfig:
    """The run's way of weights to engines, in folders of the policy's own where they go through some."""
    folders: dict[str, Any] = {}
    if (directory := getattr(weights, "dir", None)) is not None:
        folders["dir"] = str(Path(directory) / name)
    if replicas := getattr(weights, "replicas", ()):
        folders["replicas"] = tuple(str(Path(each) / name) for each in replicas)
    return weights.model_copy(update=folders)


def _open_frozen(own: PolicyConfig, name: str, model: Path, engine: Engine | None = None) -> Policy:
    """A policy of a model's folder, with an engine of its own unless one is given; frozen unless it learns."""
    return Policy(
        get_renderer(model, own.model.renderer, own.model.stop),
        make_engines(own.engine, own.fleet, WeightsConfig(), model) if engine is None else engine,
        name=name,
        model=model,
        strip_reasoning=own.model.reasoning == "strip",
        frozen=not own.learns,
    )


@dataclass(frozen=True)
class Function:
    """A user's function as a scripted policy; what it raises stops the run, since it would in every session.

    Attributes:
        where: the setting that names it.
        function: `function(env, messages)` returns the agent's next message, or its text; it may be `async`.
    """

    where: str
    function: Callable[[Env, Sequence[Message]], Any]

    async def __call__(self, env: Env, messages: Sequence[Message]) -> Message:
        """The agent's next message; ConfigError where it failed, or returned something else."""
        try:
            said = await resolve(self.function(env, list(messages)))
            message = Message.model_validate({"role": "assistant", "content": said} if isinstance(said, str) else said)
        except AgentRLError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError(f"{self.where} raised {type(error).__name__}: {error}") from error
        if message.role != "assistant":
            raise ConfigError(f"{self.where} returned a message of role {message.role!r}, not an assistant's")
        return message


def script(name: str, rules: str) -> Actor:
    """Return an actor by rules: `expert`, `demonstrator`, `noop`, or a function's import path.

    Raises:
        UnknownName: there is no such function.
        ConfigError: importing it failed, or it is no function.
    """
    if rules in RULES:
        return RULES[rules]
    if ":" not in rules:
        raise unknown_name(
            f"kind of policy (policies.{name})", rules, (MODEL, *NEED_OTHERS, *RULES, "file.py:FUNCTION", "https://…")
        )
    where = f"policies.{name}={rules!r}"
    function = load(rules, where)
    if not callable(function):
        raise ConfigError(f"{where} is {function!r}, which is no function of environment and messages")
    return ScriptedActor(Function(where, function))


def check_partner(name: str, own: PolicyConfig, env: Env) -> None:
    """Refuse a policy that can't play agents of an environment, or that nothing can be found for.

    Raises:
        UnknownName: there is no such function or model.
        ConfigError: a setting is missing or does not fit.
    """
    where = f"policies.{name}"
    if own.remote:
        check_api(own.name, own.api, env, setting=where)
    elif own.name == "expert" and not has_expert(env):
        raise ConfigError(f"{where}=expert: {type(env.unwrapped).__name__} has no expert")
    elif own.name == "demonstrator" and not has_demonstrator(env):
        raise ConfigError(f"{where}=demonstrator: {type(env.unwrapped).__name__} has no demonstrator")
    elif own.name not in (MODEL, *NEED_OTHERS):
        script(name, own.name)
    elif own.model.name != START:
        try:
            folder = model_folder(own.model)
        except UnknownName as error:
            raise UnknownName(f"{where}.model: {error}") from None
        get_renderer(folder, own.model.renderer, own.model.stop)
