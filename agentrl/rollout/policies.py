"""Policies: what generates the turns of an environment's agents.

A run trains (or evaluates) one policy, `main`, which plays every agent unless `agents.NAME=POLICY` says otherwise. A
frozen policy (an opponent, a user simulator, an earlier checkpoint) has a model and an engine of its own, to which no
weights are published: its version stays 0. Nothing that it generated is trained on. The trainer of a policy that learns
is part of the run's state (`agentrl.train.state`), where weights, optimizer and stream are saved together.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from agentrl.config import START, EngineConfig, FleetConfig, PolicyConfig, RolloutConfig, WeightsConfig
from agentrl.envs.episode import Actor
from agentrl.models import resolve
from agentrl.rollout.actors import ModelActor
from agentrl.rollout.fleet import make_engines
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.renderers.base import Renderer
from agentrl.sessions.turn_generator import TurnGenerator
from agentrl.types import MAIN, Engine, Sampling

AVERAGED = "averaged"
"""What nodes call the policy whose weights are the average of the trained one's."""


@dataclass(frozen=True)
class Policy:
    """A model, its conversation format, and the engine that generates with it.

    Attributes:
        renderer: turns messages into the model's tokens and back.
        engine: generates; None where only scripts act.
        name: what nodes and metrics call it.
        model: the folder that its weights come from at first.
        strip_reasoning: whether a user's message leaves earlier reasoning behind; see `TurnGenerator`.
        frozen: whether it is never trained.
    """

    renderer: Renderer
    engine: Engine | None = None
    name: str = MAIN
    model: Path | None = None
    strip_reasoning: bool = False
    frozen: bool = False

    @property
    def version(self) -> int:
        """The version that its engine generates with: how often weights were published to it."""
        return 0 if self.engine is None else self.engine.version()

    def turn_generator(self, limits: RolloutConfig) -> TurnGenerator:
        """What generates this policy's turns within a run's token budgets."""
        return TurnGenerator(
            self.renderer,
            self.engine,
            context_tokens=limits.context_tokens,
            session_tokens=limits.session_tokens,
            strip_reasoning=self.strip_reasoning,
            policy=self.name,
            trained=not self.frozen,
        )


Partners = Mapping[str, tuple[Policy, Actor]]
"""For each agent that a frozen policy plays: the policy, and what acts by it."""


@asynccontextmanager
async def frozen_policies(
    configs: Mapping[str, PolicyConfig], agents: Mapping[str, str], start: Path, limits: RolloutConfig
) -> AsyncIterator[Partners]:
    """Frozen policies with engines of their own, which are closed in the end.

    Args:
        configs: by the policy's name.
        agents: which policy plays which agent.
        start: the model that the run begins with.
        limits: the run's tokens per turn.
    """
    policies: dict[str, Policy] = {}
    try:
        for name, config in configs.items():
            model = start if config.model.name == START else resolve(config.model.name)
            policies[name] = Policy(
                get_renderer(model, config.model.renderer),
                make_engines(config.engine, FleetConfig(), WeightsConfig(), model),
                name=name,
                model=model,
                strip_reasoning=config.model.reasoning == "strip",
                frozen=True,
            )
        yield {
            agent: (policies[name], ModelActor(_sampling(configs[name], limits)))
            for agent, name in agents.items()
            if name != MAIN
        }
    finally:
        for policy in policies.values():
            assert policy.engine is not None
            await policy.engine.close()


@asynccontextmanager
async def averaged_policy(policy: Policy, engine: EngineConfig) -> AsyncIterator[Policy]:
    """The moving average of a policy's weights as a policy of its own, for evaluation.

    Its engine begins with the model of the policy; whoever has the averaged weights publishes them to it, as the
    policy's versions.

    Args:
        policy: with the model that it began with.
        engine: the settings of the engine, which is closed in the end.
    """
    assert policy.model is not None
    own = make_engines(engine, FleetConfig(), WeightsConfig(), policy.model)
    try:
        yield replace(policy, engine=own, name=AVERAGED)
    finally:
        await own.close()


def _sampling(config: PolicyConfig, limits: RolloutConfig) -> Sampling:
    return Sampling(temperature=config.temperature, max_new_tokens=limits.turn_tokens)
