"""The model that a run starts from: a folder, or a tiny one that is made for its environment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from agentrl.common.pictures import picture
from agentrl.common.retries import retry
from agentrl.config import AlgoConfig, EvalConfig, ModelConfig
from agentrl.envs import calls
from agentrl.envs.base import Env, has_demonstrator, has_expert
from agentrl.envs.episode import DEMONSTRATOR, EXPERT, play
from agentrl.errors import InfraError, InvalidReward
from agentrl.models.registry import model_folder
from agentrl.rollout.episodes.evaluation import held_out_split
from agentrl.train.algorithms import make_algorithm
from agentrl.train.driver.setup import TINY
from agentrl.types import Session, Task

TOKENIZER_EPISODES = 200
"""Demonstrations that the tiny model's tokenizer is made from."""
TOKENIZER_RETRIES = 2
"""The number of retries after an infrastructure error."""


def demonstration_split(env: Env) -> str:
    """Return the split of demonstrations: the environment's `demo` split, else its first."""
    return "demo" if "demo" in env.splits else env.splits[0]


def data_splits(env: Env, measured: EvalConfig, *, imitates: bool) -> list[str]:
    """The splits that a run trains on, is measured by, and imitates."""
    return ["train", held_out_split(measured, env), *([demonstration_split(env)] if imitates else [])]


async def build_tiny(make_env: Callable[[], Env], out: Path, seed: int) -> Path:
    """The tiny model for an environment: random weights, and a tokenizer made from its demonstrations.

    Where these have images, it is one that sees.
    """
    from agentrl.models import tiny, tiny_vision

    env = make_env()
    texts, sizes = [], set[tuple[int, int]]()
    for task in islice(calls.tasks(env, demonstration_split(env)), TOKENIZER_EPISODES):
        own = make_env().for_task(task)
        if has_demonstrator(own):
            attempt = partial(play, policy=EXPERT if has_expert(own) else DEMONSTRATOR, seed=seed)
        else:
            attempt = partial(_opening, seed=seed)
        try:
            session = await _retry(attempt, make_env, task)
        except InvalidReward:  # of one episode, whose rewards don't matter here
            session = await _retry(partial(_opening, seed=seed), make_env, task)
        texts += [tiny.render(session_messages(view), own.tools.schemas()) for view in session.by_agent()]
        sizes |= {picture(url).size for node in session.nodes for url in node.message.images}
    shape = tiny.shape_for(texts)
    if sizes:
        return tiny_vision.build(out, texts, tiny_vision.side_of(sizes), seed=seed, shape=shape)
    return tiny.build(out, texts, seed=seed, shape=shape)


async def _retry(
    attempt: Callable[[Env, Task], Awaitable[Session]], make_env: Callable[[], Env], task: Task
) -> Session:
    """Retry an episode after an infrastructure error, as rollouts do; a bug in the environment stops the run."""
    return await retry(lambda: attempt(make_env().for_task(task), task), InfraError, [0.0] * TOKENIZER_RETRIES)


async def _opening(env: Env, task: Task, seed: int) -> Session:
    from agentrl.sessions.tree import tree

    session = Session("opening", task)
    for messages in (await calls.openings(env, task.model_copy(deep=True), seed=seed)).values():
        parent: int | None = None
        for message in messages:
            parent = tree.add(session, parent, message, []).id
    await calls.close(env)
    return session


def session_messages(session: Session) -> list[dict[str, Any]]:
    """A session's messages as plain data, their content as text without images."""
    return [node.message.model_dump(exclude_none=True) | {"content": node.message.text} for node in session.nodes]


def name_as_given(error: Exception, own: Path, model: ModelConfig) -> None:
    """Have an error name the model as the user did, where it names a run's copy that is removed."""
    error.args = tuple(one.replace(str(own), model.name) if isinstance(one, str) else one for one in error.args)


def resolve_model(model: ModelConfig, algo: AlgoConfig) -> Path:
    """The folder of the model that a run starts from; a run that learns scores may start from a score model."""
    return model_folder(model, scores=make_algorithm(algo).needs.head is not None)


async def find_or_build(
    model: ModelConfig, algo: AlgoConfig, seed: int, make_env: Callable[[], Env], folder: Path
) -> Path:
    """The folder of the model to start from; the tiny one is built in `folder`."""
    if model.name == TINY:
        return await build_tiny(make_env, folder / "model", seed)
    return resolve_model(model, algo)
