"""Scorers of sessions by their log-probabilities: a model over packed forests, an engine or a server path by path.

A forest computes each shared prefix once. An engine is asked for each path from a root to a leaf, and computes a shared
prefix once where it caches prefixes. Each token is read at the temperature that it was sampled at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agentrl.attachments import images
from agentrl.config import AlgoConfig, PolicyConfig
from agentrl.errors import ConfigError
from agentrl.sessions.tree import tree
from agentrl.train.algorithms.advantages.distill import TeacherValues
from agentrl.train.algorithms.credit import Credit, NodeAdvantage, NodeKey, Values, trainable_nodes
from agentrl.train.algorithms.divergences import IDS, LOGPS, STATES, Divergence
from agentrl.train.algorithms.values import per_token
from agentrl.train.forest.packing import pack_with_spans
from agentrl.types import Engine, Group, Node, Session

if TYPE_CHECKING:
    from agentrl.train.trainers.teachers.divergence import VocabularyHead
    from agentrl.train.trainers.torch_trainer.settings import TorchConfig
    from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer

AT_ONCE = 32
"""Paths that an engine or a server is asked for at the same time."""


class TokenScorer(Protocol):
    """A model that gives the log-probability of each token of sessions."""

    async def score(self, groups: Sequence[Group], token_budget: int, seed: int) -> Values:
        """Log-probabilities of the trainable tokens of the scored sessions, 0 at other tokens.

        Where a divergence is asked for they are `TeacherValues`.
        """


def forest_settings(own: PolicyConfig) -> TorchConfig:
    """The settings of the trainer that reads forests with a frozen policy."""
    from agentrl.train.trainers.torch_trainer.settings import TorchConfig

    return TorchConfig(device=own.engine.device, dtype=own.engine.dtype)


class ForestScorer:
    """Reads packed forests with the torch trainer's model, which is never trained.

    Args:
        path: the model's folder.
        own: the policy's settings; its engine's say where and how precisely it computes.
        divergence: what is asked for besides log-probabilities of the sampled tokens.
    """

    def __init__(self, path: Path, own: PolicyConfig, divergence: Divergence | None = None) -> None:
        from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer

        self._model, self._divergence = TorchTrainer(path, forest_settings(own), AlgoConfig()), divergence

    @property
    def head(self) -> VocabularyHead:
        """The model's head, for hidden states that it gave."""
        return self._model.output_head

    async def score(self, groups: Sequence[Group], token_budget: int, seed: int) -> Values:
        return await asyncio.to_thread(read_forests, self._model, groups, self._divergence, token_budget, seed)


@dataclass(frozen=True)
class OwnScorer:
    """Reads packed forests with the policy itself, as it is before the step.

    Attributes:
        trainer: the policy's; it has `read_forest`, where a divergence is asked for.
        computing: colocated engines sleep inside of it.
        divergence: see `ForestScorer`.
    """

    trainer: Any
    computing: Callable[[], AbstractAsyncContextManager[None]]
    divergence: Divergence | None = None

    async def score(self, groups: Sequence[Group], token_budget: int, seed: int) -> Values:
        async with self.computing():
            return await asyncio.to_thread(read_forests, self.trainer, groups, self.divergence, token_budget, seed)


def read_forests(
    trainer: TorchTrainer, groups: Sequence[Group], divergence: Divergence | None, token_budget: int, seed: int
) -> Values:
    """Read packed forests; arguments as in `ForestScorer` and `TokenScorer.score`."""
    if divergence is None:
        return per_token(groups, trainer.logprobs, token_budget, seed)
    nodes = {(s.id, n.id): n for group in groups for s in group.scored for n in trainable_nodes(s)}
    for session in (session for group in groups for session in group.scored):
        if not divergence.narrowed:
            _require_full_support(session)
    every = Credit({key: (NodeAdvantage(0.0, 1.0),) for key in nodes})
    logps = {key: [0.0] * len(node.token_ids) for key, node in nodes.items()}
    told: dict[NodeKey, dict[str, Any]] = {}
    for forest, spans in pack_with_spans(groups, every, token_budget, seed=seed):
        read = {name: values.numpy() for name, values in trainer.read_forest(forest, divergence.top_k).items()}
        logp_T = read.pop("logp").tolist()
        for span in spans:
            to, of = slice(span.start, span.start + span.length), slice(span.at, span.at + span.length)
            logps[span.node][to] = logp_T[of]
            mine = told.setdefault(span.node, {n: empty(n, nodes[span.node], v.shape[1:]) for n, v in read.items()})
            for name, values in read.items():
                mine[name][to] = values[of]
    return TeacherValues(logps, told)


def empty(name: str, node: Node, shape: Sequence[int]) -> Any:
    """An array of a field for a node's tokens, where nothing is known yet."""
    import numpy as np

    dtype = np.int32 if name == IDS else np.float32
    return np.full((len(node.token_ids), *shape), -1 if name == IDS else 0, dtype=dtype)


@dataclass(frozen=True)
class PromptScores:
    """The scores of a path's tokens, as they were read.

    Attributes:
        logps: of each token given those before it, 0.0 for the first.
        top: of each token the most probable ids in its place with their log-probabilities; empty where not asked for.
    """

    logps: Sequence[float]
    top: Sequence[Sequence[tuple[int, float]]] = ()


Read = Callable[[list[int], float, int], Any]
"""An async function of a path's token ids, a temperature, and the first token that counts: a `PromptScores`."""


class PathScorer:
    """Asks for every path to a leaf that holds trainable tokens.

    Args:
        read: asks.
        divergence: for which the most probable tokens are asked for in each place.
    """

    def __init__(self, read: Read, divergence: Divergence | None = None) -> None:
        self._ask, self._places = read, asyncio.Semaphore(AT_ONCE)
        self._top_k = None if divergence is None else divergence.top_k
        self._narrowed = divergence is not None and divergence.narrowed

    async def score(self, groups: Sequence[Group], token_budget: int, seed: int) -> Values:
        found: Values = {}
        told: dict[NodeKey, dict[str, Any]] = {}
        sessions = (session for group in groups for session in group.scored)
        async with asyncio.TaskGroup() as tasks:
            for session in sessions:
                if not self._narrowed:
                    _require_full_support(session)
                _require_text(session)
                trained = {node.id: node for node in trainable_nodes(session)}
                found |= {(session.id, node.id): [0.0] * len(node.token_ids) for node in trained.values()}
                if self._top_k is not None:
                    shape = (self._top_k,)
                    told |= {
                        (session.id, n.id): {m: empty(m, n, shape) for m in (IDS, LOGPS)} for n in trained.values()
                    }
                for path, temperature in _paths(session, trained):
                    tasks.create_task(self._read(session.id, path, temperature, found, told))
        return found if self._top_k is None else TeacherValues(found, told)

    async def _read(
        self, session_id: str, path: Sequence[Node], temperature: float, found: Values, told: dict[NodeKey, Any]
    ) -> None:
        ids = [token for node in path for token in node.token_ids]
        first = next(
            sum(len(before.token_ids) for before in path[:i])
            for i, node in enumerate(path)
            if (session_id, node.id) in found
        )
        async with self._places:
            reading = await self._ask(ids, temperature, first)
        at = 0
        for node in path:
            end = at + len(node.token_ids)
            if (key := (session_id, node.id)) in found and node.sampling and node.sampling.temperature == temperature:
                found[key] = [
                    score if used else 0.0 for score, used in zip(reading.logps[at:end], node.trainable, strict=True)
                ]
                for place, named in enumerate(reading.top[at:end]):
                    for rank, (token, logp) in enumerate(named[: self._top_k]):
                        told[key][IDS][place, rank], told[key][LOGPS][place, rank] = token, logp
            at = end


class EngineScorer(PathScorer):
    """Asks an engine."""

    def __init__(self, engine: Engine) -> None:
        async def read(ids: list[int], temperature: float, first: int) -> PromptScores:
            return PromptScores(await engine.score(ids, temperature))

        super().__init__(read)


def _require_text(session: Session) -> None:
    """Refuse sessions with images, which are not sent with a path."""
    if any(images.NAME in node.attachments for node in session.nodes):
        raise ConfigError(
            f"session {session.id!r} has images, which a teacher behind an engine or a server is not shown; a teacher "
            "of engine=local in this process reads them (policies.NAME.engine.name=local, engine.process=shared)"
        )


def _require_full_support(session: Session) -> None:
    """Refuse turns that were not drawn from the whole vocabulary, over which a path or a distribution is read."""
    if any(node.sampling and not node.sampling.full_support for node in trainable_nodes(session)):
        raise ConfigError(
            f"session {session.id!r}: turns drawn with top-p, top-k, min-p, penalties or a bias can be scored by a "
            "teacher of engine=local in this process only (policies.NAME.engine.name=local, engine.process=shared), "
            "and by algo.divergence=sampled; algo.narrowed=whole compares them over the whole vocabulary"
        )


def _paths(session: Session, trained: dict[int, Node]) -> Iterator[tuple[list[Node], float]]:
    """Paths that hold every trained node, and temperatures that they were sampled at."""
    left = dict(trained)
    for leaf in reversed(session.nodes):  # the deepest first
        if leaf.id in left:
            path = tree.path(session, leaf.id)
            mine = [left.pop(node.id) for node in path if node.id in left]
            for temperature in {node.sampling.temperature for node in mine if node.sampling}:
                yield path, temperature


def needs_head(divergence: Divergence | None) -> bool:
    """True if the trainer needs the teacher's head beside it: `told` is then hidden states (`STATES`)."""
    return divergence is not None and divergence.top_k is None


def head_of(scorer: TokenScorer) -> VocabularyHead:
    """The head of a teacher that reads forests."""
    if isinstance(scorer, ForestScorer):
        return scorer.head
    raise ConfigError(f"algo.top_k=none reads {STATES} of a model in this process: set algo.top_k, such as 20")
