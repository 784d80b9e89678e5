"""Policies that an algorithm asks what they say of what was sampled; none of them is trained by that.

A policy of a folder whose engine is the embedded one reads packed forests, as the trained policy itself does. Another
engine, and a server at a URL, is asked for each path. Teachers are opened when they are first asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.config import START, Policies, PolicyConfig, RolloutConfig, WeightsConfig
from agentrl.config.learners import LearnerConfig
from agentrl.errors import ConfigError, InvalidInput
from agentrl.models.registry import model_folder
from agentrl.models.tokenizers import load_tokenizer
from agentrl.rollout.engines import ENGINES
from agentrl.rollout.fleet import make_engines, wait_until_started
from agentrl.rollout.stream.seeds import derive
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.renderers.base import Renderer
from agentrl.sessions.tree import tree
from agentrl.train.algorithms import Algorithm
from agentrl.train.algorithms.advantages.distill import TeacherValues
from agentrl.train.algorithms.credit import Values
from agentrl.train.trainers import TRAINERS
from agentrl.train.trainers.teachers import scorers
from agentrl.train.trainers.teachers.server import TeacherServer
from agentrl.types import MAIN, Group, Message, Node, Part, Session

Computing = Callable[[], AbstractAsyncContextManager[None]]
"""Inside of it the trainer computes, and colocated engines sleep."""
__all__ = ["Teachers", "check_teachers", "teacher_folder"]


class Teachers:
    """The policies that are `asked` by a run's algorithm; `own` learns from them."""

    def __init__(self, asked: Policies, own: LearnerConfig, seed: int, folder: Path) -> None:
        self._asked, self._own, self._seed, self._folder = asked, own, seed, folder
        self._open = AsyncExitStack()
        self._scorers: dict[str, scorers.TokenScorer] = {}

    async def score(
        self,
        algorithm: Algorithm,
        groups: Sequence[Group],
        step: int,
        trainer: Any = None,
        computing: Computing | None = None,
    ) -> Values:
        """Each token's log-probability under the policy that the algorithm names for it.

        Args:
            algorithm: names teachers, and may want more of them (`Algorithm.divergence`).
            groups: the step's.
            step: from 0.
            trainer: of the policy, which may teach itself, and which gets the teacher's head, where it needs one.
            computing: see `Computing`.

        Raises:
            ConfigError: it names a policy that is not there.
            EngineError: a server failed, and went on failing.
        """
        found: Values = {}
        told: dict[Any, Any] = {}
        for name, own in by_teacher(algorithm, self._read_by_teachers(algorithm, groups)).items():
            seed = derive(self._seed, "teacher", name, step)
            if algorithm.divergence is not None and name == MAIN and not hasattr(trainer, "read_forest"):
                raise ConfigError("the trainer is in another process: set policies.teacher.model=start, a copy of it")
            if name == MAIN and computing is not None:
                scorer: scorers.TokenScorer = scorers.OwnScorer(trainer, computing, algorithm.divergence)
            else:
                scorer = await self._scorer(name, algorithm)
            scored = await scorer.score(own, self._own.trainer.token_budget, seed)
            found |= scored
            told |= scored.told if isinstance(scored, TeacherValues) else {}
            if scorers.needs_head(algorithm.divergence):
                await asyncio.to_thread(trainer.set_teacher, scorers.head_of(scorer))
        return found if algorithm.divergence is None else TeacherValues(found, told)

    def _read_by_teachers(self, algorithm: Algorithm, groups: Sequence[Group]) -> Sequence[Group]:
        config = algorithm.config
        field = getattr(config, "privileged", None)
        if field is None:
            return groups
        model = self._own.model
        renderer = get_renderer(self._folder / "model", model.renderer, model.stop)
        return Privileged(renderer, field, getattr(config, "privileged_text", "{}"))(groups)

    async def _scorer(self, name: str, algorithm: Algorithm) -> scorers.TokenScorer:
        if name not in self._scorers:
            if name not in self._asked:
                known = ", ".join(sorted(self._asked))
                raise ConfigError(f"a task names the teacher {name!r}, which is not among those of the run: {known}")
            self._scorers[name] = await self._open_teacher(name, self._asked[name], algorithm)
        return self._scorers[name]

    async def _open_teacher(self, name: str, own: PolicyConfig, algorithm: Algorithm) -> scorers.TokenScorer:
        wanted, start = algorithm.divergence, self._folder / "model"
        if own.remote:
            server = TeacherServer(name, own, load_tokenizer(start), None if wanted is None else wanted.top_k)
            self._open.push_async_callback(server.close)
            await server.start()
            return scorers.PathScorer(server.read, wanted)
        path = teacher_folder(own, start)
        if _reads_forests(own):
            return await asyncio.to_thread(scorers.ForestScorer, path, own, wanted)
        engine = make_engines(own.engine, own.fleet, WeightsConfig(), path)
        self._open.push_async_callback(engine.close)
        await wait_until_started(engine)
        return scorers.EngineScorer(engine)

    async def close(self) -> None:
        """End what was opened; idempotent."""
        self._scorers.clear()
        await self._open.aclose()


def _reads_forests(own: PolicyConfig) -> bool:
    return ENGINES.find(own.engine.name).in_process(own.engine)


def teacher_folder(own: PolicyConfig, start: Path) -> Path:
    """The folder of a policy's model; `start` is the one that the run began with."""
    return start if own.model.name == START else model_folder(own.model)


async def check_teachers(
    asked: Policies, own: LearnerConfig, limits: RolloutConfig, algorithm: Algorithm, start: Path
) -> None:
    """Refuse teachers whose tokens mean something else than the student's, or that can't say what is asked of them.

    Raises:
        ConfigError: a teacher has another vocabulary, an architecture that the torch trainer computes differently, or
            no way to tell what a divergence needs; a server does not answer, or can't.
    """
    if not algorithm.needs.teacher:
        return
    _check_divergence(own.trainer.name, algorithm, asked)
    mine = load_tokenizer(start)
    for name, each in asked.items():
        if each.remote:
            await _check_server(limits, algorithm, name, each, start)
            continue
        folder = teacher_folder(each, start)
        its = load_tokenizer(folder)
        if mine.vocabulary != its.vocabulary:
            where = f"policies.{name}.model={each.model.name}"
            raise ConfigError(
                f"{where}: its tokenizer ({its.vocab_size} tokens) is not that of model={own.model.name} "
                f"({mine.vocab_size} tokens), and a teacher scores the student's tokens; a model with other tokens "
                f"teaches by its text: agentrl reject model={each.model.name} out=FILE, and algo=sft data=FILE"
            )
        if _reads_forests(each) and each.model.name != START:
            settings = scorers.forest_settings(each)
            TRAINERS.find(settings.name).prove(settings, folder, each.model.name, None)


def _check_divergence(trainer: str, algorithm: Algorithm, asked: Policies) -> None:
    wanted = algorithm.divergence
    if wanted is None:
        return
    where, able = f"algo.divergence={getattr(algorithm.config, 'divergence', '')}", TRAINERS.find(trainer).divergences
    whole = wanted.top_k is None
    if able == "none" or (whole and able == "top_k"):
        instead = "set algo.top_k, such as 64" if able == "top_k" else "use algo.divergence=sampled"
        raise ConfigError(
            f"{where} with algo.top_k={wanted.top_k or 'none'}: trainer={trainer} has no place for it; {instead}"
        )
    names = set(asked)
    if algorithm.config.by_itself:
        names.add(MAIN)
    if MAIN in names and able != "own":
        raise ConfigError(
            f"{where}: trainer={trainer} can't read what the policy itself says of a whole distribution; use "
            "policies.teacher.model=start, a copy that stays, or algo.divergence=sampled"
        )
    if whole and (len(names) > 1 or MAIN in names or any(asked[name].remote for name in names - {MAIN})):
        raise ConfigError(
            f"{where} with algo.top_k=none has one teacher, a model of a folder; set algo.top_k, such as 20"
        )
    for name, own in asked.items():
        if not own.remote and not _reads_forests(own):
            raise ConfigError(
                f"{where} needs more than the sampled tokens' log-probabilities, which policies.{name} with engine="
                f"{own.engine.name} does not give; use engine=local, or start it yourself and set policies.{name}=URL"
            )


async def _check_server(limits: RolloutConfig, algorithm: Algorithm, name: str, own: PolicyConfig, start: Path) -> None:
    """Ask a server once for what the run will ask it for."""
    temperature = limits.temperature
    if temperature != 1:
        raise ConfigError(
            f"policies.{name}={own.name}: servers answer log-probabilities of a prompt at temperature 1, and "
            f"rollout.temperature={temperature:g} is to hold on both sides; set rollout.temperature=1, or a model that "
            f"the run reads with, policies.{name}.model=FOLDER"
        )
    wanted = algorithm.divergence
    server = TeacherServer(name, own, load_tokenizer(start), None if wanted is None else wanted.top_k)
    try:
        await server.start()
    finally:
        await server.close()


def by_teacher(algorithm: Algorithm, groups: Sequence[Group]) -> dict[str, list[Group]]:
    """The groups of each teacher, with what it teaches of their sessions; a session of one teacher is as it was.

    Views are copies of sessions with the same ids of sessions and nodes, so that who reads sessions, by forests or by
    paths, needs to know of neither. The tokens of turns stay as they were sampled; those of the prompt before a path's
    first turn are rendered again with the privileged text in it, so that only positions move. A prompt that the
    renderer does not write as it stands in the session (a program's own format) is refused.
    """
    found: dict[str, list[Group]] = {}
    for group in groups:
        names: dict[str, list[Session]] = {}
        for session in group.sessions:
            for name, view in _views(algorithm, session):
                names.setdefault(name, []).append(view)
        for name, sessions in names.items():
            found.setdefault(name, []).append(replace(group, sessions=sessions))
    return found


def _views(algorithm: Algorithm, session: Session) -> Iterator[tuple[str, Session]]:
    usual, others = algorithm.teacher_of(session), algorithm.teachers_by_turn(session)
    if not others:
        yield usual, session
        return
    sampled = [node.id for node in session.nodes if node.sampled]
    for name in dict.fromkeys(others.get(node, usual) for node in sampled):
        left_out = {node for node in sampled if others.get(node, usual) != name}
        nodes = [
            replace(node, trainable=[False] * len(node.token_ids)) if node.id in left_out else node
            for node in session.nodes
        ]
        yield name, replace(session, nodes=nodes)


class Privileged:
    """Adds text to the prompts that teachers read.

    Args:
        renderer: the run's, in which sessions were written.
        field: the field of the task that holds the text.
        text: how it stands behind a message, as a paragraph of its own, with `{}` in its place.
    """

    def __init__(self, renderer: Renderer, field: str, text: str) -> None:
        self._renderer, self._field, self._text = renderer, field, text

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with the text in every prompt.

        Raises:
            InvalidInput: a task has no such field, or a prompt can't be rendered again.
        """
        return [replace(group, sessions=[self._session(session) for session in group.sessions]) for group in groups]

    def _session(self, session: Session) -> Session:
        data = session.task.data
        if data.get(self._field) is None:
            known = ", ".join(sorted(data)) or "none"
            raise InvalidInput(
                f"algo.privileged={self._field}: task {session.task.id!r} has no such field (fields: {known})"
            )
        said = "\n\n" + self._text.replace("{}", str(data[self._field]))
        changed: dict[int, Node] = {}
        for first in _first_turns(session):
            prompt = tree.path(session, first)[:-1]
            for node, ids in zip(prompt, self._render(session, prompt, said), strict=True):
                changed[node.id] = _with_tokens(node, ids)
        return replace(session, nodes=[changed.get(node.id, node) for node in session.nodes])

    def _render(self, session: Session, prompt: Sequence[Node], said: str) -> list[list[int]]:
        """The tokens of each of a prompt's messages, the last one of a user's with the text behind it."""
        if not prompt:
            raise InvalidInput(
                f"algo.privileged: session {session.id!r} begins with a turn, and has no prompt to add to"
            )
        messages, tools = [node.message for node in prompt], prompt[0].tools
        if self._renderer.render(messages, tools=tools) != [node.token_ids for node in prompt]:
            raise InvalidInput(
                f"algo.privileged: the prompt of session {session.id!r} is not what {self._renderer.name} writes for "
                "its messages, so that nothing can be added to it"
            )
        place = max((i for i, each in enumerate(messages) if each.role == "user"), default=len(messages) - 1)
        messages[place] = _extend(messages[place], said)
        return self._renderer.render(messages, tools=tools)


def _first_turns(session: Session) -> list[int]:
    """The turns with no turn before them on their path."""
    after: set[int | None] = set()
    found = []
    for node in session.nodes:
        turn = node.message.role == "assistant"
        if turn and node.parent not in after:
            found.append(node.id)
        if turn or node.parent in after:
            after.add(node.id)
    return found


def _extend(message: Message, said: str) -> Message:
    content = message.content
    if content is None or isinstance(content, str):
        return message.model_copy(update={"content": (content or "") + said})
    return message.model_copy(update={"content": [*content, Part(type="text", text=said)]})


def _with_tokens(node: Node, ids: list[int]) -> Node:
    count = len(ids)
    return replace(node, token_ids=ids, trainable=[False] * count, logprobs=[0.0] * count, attachments={})
