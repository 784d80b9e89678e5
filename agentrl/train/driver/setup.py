"""A run's setup: defaults for its environment and model, the model's folder, the tiny model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from agentrl.common.pictures import picture
from agentrl.config import AlgoConfig, ModelConfig, RunConfig
from agentrl.config.secrets import hidden
from agentrl.envs import calls
from agentrl.envs.base import Env, has_demonstrator, has_expert
from agentrl.envs.episode import DEMONSTRATOR, EXPERT, play
from agentrl.envs.registry import find
from agentrl.errors import ConfigError, EnvError, InfraError, InvalidReward
from agentrl.models.registry import model_folder
from agentrl.overrides import Tree, applicable, merge, spread, validate, value_at
from agentrl.rollout.episodes.evaluation import SCRIPTED, held_out_split
from agentrl.train.algorithms import make_algorithm
from agentrl.types import Session, Task

TINY = "tiny"
ADAPTERS_RATE = 10
"""An adapter's learning rate over the whole model's."""
TINY_RECIPE: Mapping[str, Any] = {
    "steps": 40,
    "algo.lr": 1e-3,
    "algo.minibatches": 4,
    "algo.schedule": "linear",
    "algo.warmup_steps": 4,
    "algo.kl_coef": 0.02,
    "rollout.turn_tokens": 64,
    "rollout.session_tokens": 1024,
    "engine.max_batch": 128,
    "trainer.token_budget": 16384,
}
"""Settings for a model of half a million parameters; real models keep the defaults."""
TINY_WARM_START = 150
"""Steps of imitation where an environment has an expert or a demonstrator and its recipe says nothing else."""
TOKENIZER_EPISODES = 200
"""Demonstrations that the tiny model's tokenizer is made from."""
TOKENIZER_RETRIES = 2
"""The number of retries after an infrastructure error."""


def complete(tree: Mapping[str, Any]) -> RunConfig:
    """Complete a configuration: with a resumed run's own settings, or with defaults for this env and model.

    Raises:
        ConfigError: a setting is unknown, has the wrong type, or contradicts another.
    """
    if tree.get("resume"):
        from agentrl.train.driver.resuming import read_settings
        from agentrl.train.record import kept_code
        from agentrl.train.record.remote_copy import download_resumed

        tree = download_resumed(tree)
        saved = kept_code.usable(run := Path(tree["resume"]), read_settings(run, "resume"))
        if again := tree.get("rerun") or saved.get("rerun"):
            raise ConfigError(f"resume={tree['resume']}: a rerun can't be resumed; begin it again: rerun={again}")
        return validate(_known(merge(applicable(saved, tree), tree)), RunConfig)
    if tree.get("rerun"):
        from agentrl.train.record import recording

        return validate(_known(merge(applicable(recording.settings(Path(tree["rerun"])), tree), tree)), RunConfig)
    if tree.get("data") is not None:
        return validate(_known(merge(_data_recipe(tree), tree)), RunConfig)
    if "env" not in tree:
        validate(tree, RunConfig)  # which says so, beside what else is wrong
    named = {key: tree[key] for key in ("env", "model", "policy") if key in tree}
    suits = recipe(validate(named, RunConfig))
    try:
        validate(merge(suits, named), RunConfig)
    except ConfigError as error:
        raise EnvError(f"the recipe of environment {named['env']!r}: {error}") from None
    settings = _in_parts(merge(applicable(suits, tree), tree), tree)
    return validate(_known(_at_adapters_rate(settings, tree)), RunConfig)


def _data_recipe(tree: Mapping[str, Any]) -> Tree:
    """Default settings of a run that reads its sessions: supervised learning; the tiny model's own learning rate."""
    model = tree.get("model")
    name = model.get("name") if isinstance(model, Mapping) else model
    small = {"algo.lr": 3e-3, "algo.warmup_steps": 4, "trainer.token_budget": 16384} if name in (None, TINY) else {}
    chosen = tree.get("algo")
    named = isinstance(chosen, str) or (isinstance(chosen, Mapping) and "name" in chosen)
    return spread(small | ({} if named else {"algo.name": "sft"}))


def _in_parts(settings: Tree, given: Mapping[str, Any]) -> Tree:
    """The settings, with no more of a recipe's minibatches than a step's groups and the trainer allow."""
    parts, groups = value_at(settings, "algo.minibatches"), value_at(settings, "rollout.groups_per_step")
    if not isinstance(parts, int) or value_at(given, "algo.minibatches") is not None:
        return settings
    if isinstance(groups, int):
        parts = min(parts, max(groups, 1))
    chosen = settings.get("trainer")
    trainer = chosen.get("name") if isinstance(chosen, Mapping) else chosen
    if isinstance(trainer, str) and not _takes_minibatches(trainer):
        parts = 1
    return merge(settings, {"algo": {"minibatches": parts}})


def _at_adapters_rate(settings: Tree, given: Mapping[str, Any]) -> Tree:
    """The settings, with an adapter's learning rate where none is given: ten times the whole model's.

    The optimum over ranks and tasks (J. Schulman and Thinking Machines Lab, "LoRA Without Regret", 2025).
    """
    lora = settings.get("lora")
    if not isinstance(lora, Mapping) or not (lora.get("rank") or lora.get("adapter")):
        return settings
    if value_at(given, "algo.lr") is not None:
        return settings
    rate = value_at(settings, "algo.lr")
    try:
        return merge(settings, {"algo": {"lr": ADAPTERS_RATE * float(AlgoConfig().lr if rate is None else rate)}})
    except (TypeError, ValueError):
        return settings  # no number, as the validation says


def _takes_minibatches(trainer: str) -> bool:
    from agentrl.train.trainers import TRAINERS

    return TRAINERS.find(trainer).takes_minibatches


def _known(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings, once no secret is missing that a config.yaml does not keep.

    Raises:
        ConfigError: one is.
    """
    if names := list(hidden(tree)):
        given = " ".join(f"{name}=…" for name in names)
        raise ConfigError(f"{', '.join(names)}: secrets are not kept in config.yaml; give them again: {given}")
    return tree


def recipe(config: RunConfig) -> Tree:
    """Default settings for this environment with this model; the user's own override them."""
    target = find(config.env.name)
    settings: dict[str, Any] = {}
    model = "" if config.policy in SCRIPTED else config.model.name  # a script plays any form of a task
    if model == TINY:
        settings |= TINY_RECIPE
        if isinstance(target, type) and issubclass(target, Env) and has_demonstrator(target):
            settings["warm_start.steps"] = TINY_WARM_START
    suits = getattr(target, "recipe", None)
    own = _written(config.env.name, suits, model) if callable(suits) else {}
    return _in_parts(spread(settings | own), spread(own))


def _written(env: str, suits: Callable[[str], Any], model: str) -> dict[str, Any]:
    """The environment's own recipe.

    Raises:
        EnvError: its code failed, or returned something else than settings.
    """
    try:
        settings = suits(model)
    except Exception as error:
        raise EnvError(f"the recipe of environment {env!r} raised {type(error).__name__}: {error}") from error
    if not isinstance(settings, Mapping):
        raise EnvError(f"the recipe of environment {env!r} is {settings!r}, not a mapping of settings")
    return {str(key): value for key, value in settings.items()}


def quiet() -> None:
    """Turn off the libraries' progress bars, which would break our display."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def demonstration_split(env: Env) -> str:
    """Return the split of demonstrations: the environment's `demo` split, else its first."""
    return "demo" if "demo" in env.splits else env.splits[0]


def data_splits(config: RunConfig, env: Env) -> list[str]:
    """The splits that a run trains on, is measured by, and imitates."""
    return ["train", held_out_split(config, env), *([demonstration_split(env)] if config.warm_start.steps else [])]


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
            session = await _retried(attempt, make_env, task)
        except InvalidReward:  # of one episode, whose rewards don't matter here
            session = await _retried(partial(_opening, seed=seed), make_env, task)
        texts += [tiny.render(session_messages(view), own.tools.schemas()) for view in session.by_agent()]
        sizes |= {picture(url).size for node in session.nodes for url in node.message.images}
    shape = tiny.shape_for(texts)
    if sizes:
        return tiny_vision.build(out, texts, tiny_vision.side_of(sizes), seed=seed, shape=shape)
    return tiny.build(out, texts, seed=seed, shape=shape)


async def _retried(
    attempt: Callable[[Env, Task], Awaitable[Session]], make_env: Callable[[], Env], task: Task
) -> Session:
    """Retry an episode after an infrastructure error, as rollouts do; a bug in the environment stops the run."""
    for _ in range(TOKENIZER_RETRIES):
        try:
            return await attempt(make_env().for_task(task), task)
        except InfraError:
            continue
    return await attempt(make_env().for_task(task), task)


async def _opening(env: Env, task: Task, seed: int) -> Session:
    from agentrl.sessions.tree import tree

    session = Session("opening", task)
    for messages in (await calls.openings(env, task, seed=seed)).values():
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
    """The folder of the model that a run starts from; a run that learns scores may start from a score model.

    Raises:
        UnknownName: no such model; the message lists what is known.
    """
    return model_folder(model, scores=make_algorithm(algo).needs.head is not None)
