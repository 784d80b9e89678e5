"""Policies: what generates the turns of an environment's agents.

A run trains (or evaluates) the policy `main`, which plays every agent unless `agents.NAME=POLICY` says otherwise; then
a partner plays it (`rollout.episodes.opponents`), which may learn as well. A frozen policy has a model and an engine of
its own, to which no weights are published: its version stays 0. Nothing that it generated is trained on. The trainer of
a policy that learns is part of the run's state (`agentrl.train.record.state`), where weights, optimizer and stream are
saved together.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from agentrl.config import EngineConfig, FleetConfig, RolloutConfig, WeightsConfig
from agentrl.envs.base import Env
from agentrl.envs.turns import Actor
from agentrl.errors import ConfigError
from agentrl.rollout.fleet import make_engines
from agentrl.rollout.stream.seeds import derive
from agentrl.sessions.renderers.base import Renderer
from agentrl.sessions.tree.conversation import Conversation
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.types import GREEDY, MAIN, Engine, Node, Sampling, Session

AVERAGED = "averaged"
"""The name of the policy whose weights are the average of the trained one's, in nodes."""


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

    def require_engine(self) -> Engine:
        """Return the engine; ConfigError where it has none."""
        if self.engine is None:
            raise ConfigError(f"the policy {self.name!r} has no engine: only scripts act")
        return self.engine

    def require_model(self) -> Path:
        """Return the folder that its weights come from at first; ConfigError where it has none."""
        if self.model is None:
            raise ConfigError(f"the policy {self.name!r} has no model: only scripts act")
        return self.model

    @property
    def version(self) -> int:
        """The version that the engine generates with: how often weights were published."""
        return 0 if self.engine is None else self.engine.version()

    def turn_generator(self, limits: RolloutConfig) -> TurnGenerator:
        """Return the generator of this policy's turns within a run's token budgets."""
        return TurnGenerator(
            self.renderer,
            self.engine,
            context_tokens=limits.context_tokens,
            session_tokens=limits.session_tokens,
            strip_reasoning=self.strip_reasoning,
            policy=self.name,
            trained=not self.frozen,
            strict_calls=limits.strict_calls,
        )


class Opponent(Protocol):
    """Plays agents in the place of the policy that is trained or evaluated."""

    @property
    def policies(self) -> Sequence[Policy]:
        """The policies that play, with their engines."""

    def plays(self, session: Session) -> tuple[Policy, Actor] | None:
        """Return the policy that plays in a session, and its actor; None: the trained policy plays."""


@dataclass(frozen=True)
class Fixed:
    """A partner that is the same in every session."""

    policy: Policy
    actor: Actor

    @property
    def policies(self) -> Sequence[Policy]:
        return (self.policy,)

    def plays(self, session: Session) -> tuple[Policy, Actor]:
        return self.policy, self.actor


@dataclass(frozen=True)
class Population:
    """Partners of which each group meets one, by the run's seed and the group's number; evaluations meet the first."""

    name: str
    members: Sequence[Opponent | None]
    seed: int

    @property
    def policies(self) -> Sequence[Policy]:
        return [policy for member in self.members if member is not None for policy in member.policies]

    def plays(self, session: Session) -> tuple[Policy, Actor] | None:
        member = self.members[0]
        if session.phase in ("train", GREEDY):
            number = session.group_number or 0
            member = random.Random(derive(self.seed, "population", self.name, number)).choice(self.members)
        return None if member is None else member.plays(session)


Partners = Mapping[str, Opponent]
"""Partners by the agent that each plays."""


@asynccontextmanager
async def averaged_policy(policy: Policy, engine: EngineConfig) -> AsyncIterator[Policy]:
    """The moving average of a policy's weights as a policy of its own, for evaluation.

    Its engine begins with the model of the policy; whoever has the averaged weights publishes them to it, as the
    policy's versions.

    Args:
        policy: with the model that it began with.
        engine: the settings of the engine, which is closed in the end.
    """
    own = make_engines(engine, FleetConfig(), WeightsConfig(), policy.require_model())
    try:
        yield replace(policy, engine=own, name=AVERAGED)
    finally:
        await own.close()


def sampling_of(limits: RolloutConfig) -> Sampling:
    """Return the sampling of turns under these limits, but for their seeds."""
    return Sampling(
        temperature=limits.temperature,
        max_new_tokens=limits.turn_tokens,
        top_p=limits.top_p,
        top_k=limits.top_k,
        min_p=limits.min_p,
        repetition_penalty=limits.repetition_penalty,
    )


class ModelActor:
    """A language model: turns are generated by the conversation's engine."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling

    def greedy(self) -> ModelActor:
        """Return the actor at temperature 0."""
        return ModelActor(replace(self.sampling, temperature=0.0))

    async def act(self, conversation: Conversation, env: Env, turn: int, deadline: float) -> Node:
        """Generate a turn with a seed of its own, of session, turn and branch."""
        session = conversation.session
        branch = ("branch", len(session.branches)) if session.branches else ()  # the earlier ones are listed there
        seed = derive(session.seed, "sample", session.sample, "turn", turn, *branch)
        return await conversation.generate(self.sampling, deadline, seed=seed)
