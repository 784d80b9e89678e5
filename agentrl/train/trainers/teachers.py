"""Frozen policies that an algorithm asks for their log-probabilities of what was sampled.

A policy of a folder whose engine is the embedded one is read by the torch trainer's forward pass over forests, where
each shared prefix is computed once. Another engine is asked for each path from a root to a leaf; a server that caches
prefixes computes them once as well. Either reads at the temperature that a token was sampled at. Teachers are opened
when they are first asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agentrl.config import START, AlgoConfig, FleetConfig, PolicyConfig, RunConfig, WeightsConfig
from agentrl.errors import ConfigError
from agentrl.models.registry import model_folder
from agentrl.models.tokenizers import load_tokenizer
from agentrl.rollout.engines import ENGINES
from agentrl.rollout.fleet import make_engines, wait_until_started
from agentrl.rollout.stream.seeds import derive
from agentrl.sessions.tree import tree
from agentrl.train.algorithms import Algorithm
from agentrl.train.algorithms.credit import Values, trainable_nodes
from agentrl.train.algorithms.values import per_token
from agentrl.train.trainers import TRAINERS
from agentrl.types import Engine, Group, Node, Session

if TYPE_CHECKING:
    from agentrl.train.trainers.torch_trainer.settings import TorchConfig

AT_ONCE = 32
"""Paths that an engine is asked for at the same time."""


class TokenScorer(Protocol):
    """A model that gives the log-probability of each token of sessions."""

    async def score(self, groups: Sequence[Group], token_budget: int, seed: int) -> Values:
        """Log-probabilities of the trainable tokens of the scored sessions, 0 at other tokens."""
        ...


class ForestScorer:
    """Reads packed forests with the torch trainer's model, which is never trained.

    Args:
        path: the model's folder.
        own: the policy's settings; its engine's say where and how precisely it computes.
    """

    def __init__(self, path: Path, own: PolicyConfig) -> None:
        from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer

        self._model = TorchTrainer(path, _forest_settings(own), AlgoConfig())

    async def score(self, groups: Sequence[Group], token_budget: int, seed: int) -> Values:
        """See `TokenScorer`."""
        return await asyncio.to_thread(per_token, groups, self._model.logprobs, token_budget, seed)


class EngineScorer:
    """Asks an engine for every path to a leaf that holds trainable tokens.

    Args:
        engine: has started.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._places = engine, asyncio.Semaphore(AT_ONCE)

    async def score(self, groups: Sequence[Group], token_budget: int, seed: int) -> Values:
        """See `TokenScorer`."""
        found: Values = {}
        sessions = (session for group in groups for session in group.scored)
        async with asyncio.TaskGroup() as tasks:
            for session in sessions:
                _require_full_support(session)
                trained = {node.id: node for node in trainable_nodes(session)}
                found |= {(session.id, node.id): [0.0] * len(node.token_ids) for node in trained.values()}
                for path, temperature in _paths(session, trained):
                    tasks.create_task(self._read(session.id, path, temperature, found))
        return found

    async def _read(self, session_id: str, path: Sequence[Node], temperature: float, found: Values) -> None:
        async with self._places:
            scores = await self._engine.score([token for node in path for token in node.token_ids], temperature)
        at = 0
        for node in path:
            end = at + len(node.token_ids)
            if (key := (session_id, node.id)) in found and node.sampling and node.sampling.temperature == temperature:
                found[key] = [
                    score if used else 0.0 for score, used in zip(scores[at:end], node.trainable, strict=True)
                ]
            at = end


def _require_full_support(session: Session) -> None:
    """Refuse turns that were not drawn from the whole vocabulary: an engine scores over all of it.

    Raises:
        ConfigError: there are such turns.
    """
    if any(node.sampling and not node.sampling.full_support for node in trainable_nodes(session)):
        raise ConfigError(
            f"session {session.id!r}: turns drawn with top-p, top-k, min-p, penalties or a bias can be scored by a "
            "teacher of engine=local in this process only (policies.NAME.engine.name=local, engine.process=shared)"
        )


def _paths(session: Session, trained: dict[int, Node]) -> list[tuple[list[Node], float]]:
    """Paths that hold every trained node, and temperatures that they were sampled at."""
    found, left = [], dict(trained)
    for leaf in reversed(session.nodes):  # the deepest first
        if leaf.id in left:
            path = tree.path(session, leaf.id)
            mine = [left.pop(node.id) for node in path if node.id in left]
            found += [(path, t) for t in {node.sampling.temperature for node in mine if node.sampling}]
    return found


class Teachers:
    """The policies that a run's algorithm asks.

    Args:
        config: the run's.
        folder: the run's.
    """

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._open = AsyncExitStack()
        self._scorers: dict[str, TokenScorer] = {}

    async def score(self, algorithm: Algorithm, groups: Sequence[Group], step: int) -> Values:
        """Each token's log-probability under the policy that `Algorithm.teacher_of` names for its session.

        Raises:
            ConfigError: it names a policy that is not there.
        """
        by_name: dict[str, list[Group]] = {}
        for group in groups:
            names: dict[str, list[Session]] = {}
            for session in group.sessions:
                names.setdefault(algorithm.teacher_of(session), []).append(session)
            for name, sessions in names.items():
                by_name.setdefault(name, []).append(replace(group, sessions=sessions))
        found: Values = {}
        for name, own in by_name.items():
            seed = derive(self._config.seed, "teacher", name, step)
            found |= await (await self._scorer(name)).score(own, self._config.trainer.token_budget, seed)
        return found

    async def _scorer(self, name: str) -> TokenScorer:
        if name not in self._scorers:
            if name not in self._config.asked_policies:
                known = ", ".join(sorted(self._config.asked_policies))
                raise ConfigError(f"a task names the teacher {name!r}, which is not among those of the run: {known}")
            own = self._config.policies[name]
            self._scorers[name] = await self._opened(own, teacher_folder(own, self._folder / "model"))
        return self._scorers[name]

    async def _opened(self, own: PolicyConfig, path: Path) -> TokenScorer:
        if _reads_forests(own):
            return await asyncio.to_thread(ForestScorer, path, own)
        engine = make_engines(own.engine, FleetConfig(), WeightsConfig(), path)
        self._open.push_async_callback(engine.close)
        await wait_until_started(engine)
        return EngineScorer(engine)

    async def close(self) -> None:
        """End what was opened; idempotent."""
        self._scorers.clear()
        await self._open.aclose()


def _forest_settings(own: PolicyConfig) -> TorchConfig:
    from agentrl.train.trainers.torch_trainer.settings import TorchConfig

    return TorchConfig(device=own.engine.device, dtype=own.engine.dtype)


def _reads_forests(own: PolicyConfig) -> bool:
    return ENGINES.find(own.engine.name).in_process(own.engine)


def teacher_folder(own: PolicyConfig, start: Path) -> Path:
    """The folder of a policy's model; `start` is the one that the run began with."""
    return start if own.model.name == START else model_folder(own.model)


def check_teachers(config: RunConfig, start: Path) -> None:
    """Refuse teachers whose tokens mean something else than the student's, or that forests would be read wrong with.

    Raises:
        ConfigError: a teacher has another vocabulary, or an architecture that the torch trainer computes differently.
    """
    for name in sorted(config.asked_policies):
        own = config.policies[name]
        folder = teacher_folder(own, start)
        mine, its = load_tokenizer(start), load_tokenizer(folder)
        if mine.vocabulary != its.vocabulary:
            where = f"policies.{name}.model={own.model.name}"
            raise ConfigError(
                f"{where}: its tokenizer ({its.vocab_size} tokens) is not that of model={config.model.name} "
                f"({mine.vocab_size} tokens), and a teacher scores the student's tokens"
            )
        if _reads_forests(own) and own.model.name != START:
            settings = _forest_settings(own)
            TRAINERS.find(settings.name).prove(settings, folder, own.model.name, None)
