"""The first of two phases: imitate an environment's demonstrator, before reinforcement learning begins.

A model that never gets a reward learns nothing from rewards. The demonstrations are played by the
same episode driver as rollouts, on tasks of the environment's `demo` split (or `train` where it has none), and
trained on as forests by the algorithm `sft`. The same trainer then begins its second phase with a fresh
optimizer. The trainer is saved as often as later, so that a warm start that was interrupted goes on.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import shutil
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import cast

import orjson

from agentrl.config import AlgoConfig, RolloutConfig, WarmStartConfig
from agentrl.envs.episode import DEMONSTRATOR, cut_by_rule
from agentrl.errors import ConfigError, EnvError, StoreError, TrainerError
from agentrl.rollout.episodes.groups import DEMO, Rollouts
from agentrl.rollout.stream.health import failures, finding, sessions_of, with_retries
from agentrl.rollout.stream.seeds import derive
from agentrl.rollout.stream.tasks import TaskStream
from agentrl.sessions.tree import tree
from agentrl.train.algorithms import make_algorithm
from agentrl.train.display.console import Display
from agentrl.train.driver.resuming import saved_steps
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import pack
from agentrl.train.record.files import write_atomically
from agentrl.train.trainers import AdapterTrainer, Trainer
from agentrl.types import MAIN, Group, Session, Status

TIMES = "warm_start.json"


def settings(config: WarmStartConfig) -> AlgoConfig:
    """Return the settings of the imitation's optimisation.

    The loss is a mean over tokens by default. With a mean over demonstrations, tokens of short ones weigh more: with as
    many short direct answers as long tool-using ones, the model would learn to answer directly.
    """
    warmup = min(10, config.steps // 10)
    return AlgoConfig(name="sft", lr=config.lr, schedule="cosine", warmup_steps=warmup, normalize=config.normalize)


async def demonstrations(rollouts: Rollouts, tasks: TaskStream, count: int, display: Display) -> list[Session]:
    """Sessions that the environment's demonstrator played to their end.

    Raises:
        EnvError: it finished none: there is nothing to imitate.
        InfraError: all of them ended in an infrastructure error.
    """
    attempts = itertools.count()

    async def generate() -> list[Group]:
        with display.part("playing demonstrations", count) as advance:

            async def ended(session: Session) -> None:
                advance(session)

            chosen, attempt = tasks.take(0, count), next(attempts)
            return await rollouts.collect(chosen, DEMONSTRATOR, phase=DEMO, n=1, attempt=attempt, ended=ended)

    sessions = sessions_of(await with_retries(generate, "demonstrations", display.warn))
    finished = [session for session in sessions if session.status is Status.COMPLETED]
    if not finished and (finished := [session for session in sessions if cut_by_rule(session)]):
        display.say("every demonstration is cut off by a rule (max_turns, say): they are imitated as they are")
    if not finished:
        found = finding(sessions)
        raise EnvError(f"the environment's demonstrator finished none of its demonstrations: {found}")
    if warning := failures(sessions):
        display.warn(f"demonstrations: {warning}")
    return finished


def fitting(demos: list[Session], context: Mapping[str, int], limits: RolloutConfig, display: Display) -> list[Session]:
    """The demonstrations that are imitated: those beyond the context are not, as `rollout.overlong` says.

    Raises:
        ConfigError: all of them are beyond it, or one is and that is refused.
    """
    name = min(context, key=context.__getitem__)
    long = {session.id for session in demos if _longest_path(session) > context[name]}
    words = f"{len(long)} of {len(demos)} demonstrations are longer than {name}"
    if long and (limits.overlong == "refuse" or (len(long) == len(demos) and limits.overlong == "skip")):
        longest = max(map(_longest_path, demos))
        raise ConfigError(f"{words} (the longest: {longest} tokens; rollout.overlong={limits.overlong})")
    if long:
        kept = "they are not imitated" if limits.overlong == "skip" else "they are imitated nevertheless"
        display.warn(f"{words}: {kept} (rollout.overlong={limits.overlong})")
    chosen = demos if limits.overlong == "keep" else [session for session in demos if session.id not in long]
    whole = sum(tree.size(session) > limits.session_tokens for session in chosen)
    turns = sum(any(sum(node.trainable) > limits.turn_tokens for node in session.nodes) for session in chosen)
    for count, limit in (
        (whole, f"rollout.session_tokens={limits.session_tokens}"),
        (turns, f"rollout.turn_tokens={limits.turn_tokens}"),
    ):
        if count:
            display.warn(f"{count} of {len(chosen)} demonstrations exceed {limit}, which cuts sampled sessions off")
    return chosen


def _longest_path(session: Session) -> int:
    return max((sum(len(node.token_ids) for node in path) for path in session.stored_paths()), default=0)


async def warm_start(
    trainer: Trainer,
    demos: list[Session],
    config: WarmStartConfig,
    token_budget: int,
    seed: int,
    display: Display,
    folder: Path,
    every: int,
    *,
    whole: bool = False,
    policy: str = MAIN,
) -> None:
    """Imitate: `config.steps` optimizer steps on the demonstrations, but for those that were saved before.

    The last is the first after which the policy's entropy is below `config.entropy_floor`.

    Args:
        trainer: learns; the caller begins its next phase.
        demos: the demonstrations.
        config: steps and batch size.
        token_budget: tokens of one forest.
        seed: the run's; it decides the order of the demonstrations.
        display: where progress is shown.
        folder: where the trainer is saved; the caller removes it once the next phase has its checkpoint.
        every: steps between two such files.
        whole: the trainer is one of adapters, and trains the whole model meanwhile.
        policy: whose trainer it is, for the display.
    """
    algo = settings(config)
    if whole:
        cast(AdapterTrainer, trainer).begin(algo, config.steps, whole=True)
    else:
        trainer.begin(algo, config.steps)
    if done := saved_steps(folder):
        await asyncio.to_thread(trainer.load, _folder_of(folder, done))
        display.say(f"the warm start goes on after its step {done}")
    whose = "warm start" if policy == MAIN else f"warm start of {policy}"
    display.phase(f"{whose}: imitating demonstrations", config.steps, "loss", done)
    async with aclosing(_batches(demos, algo, config, token_budget, seed, done)) as batches:
        async for step, forests in batches:
            metrics = await asyncio.to_thread(trainer.step, forests)
            display.step(metrics, metrics["loss"])
            if (entropy := metrics.get("policy/entropy", math.inf)) < config.entropy_floor:  # not every trainer has it
                display.say(
                    f"the warm start ends after {step + 1} of {config.steps} steps: {entropy:.4f} nats a token are "
                    f"below warm_start.entropy_floor={config.entropy_floor:g}"
                )
                break
            if (step + 1) % every == 0 and step + 1 < config.steps:
                await asyncio.to_thread(_save, trainer, folder, step + 1)


async def _batches(
    demos: list[Session], algo: AlgoConfig, config: WarmStartConfig, token_budget: int, seed: int, done: int
) -> AsyncGenerator[tuple[int, list[Forest]], None]:
    """Yield each step that is not done, with its forests; the next step's are packed while one is trained."""
    order, algorithm = random.Random(derive(seed, "warm start")), make_algorithm(algo)
    chosen = [order.sample(demos, min(config.batch, len(demos))) for _ in range(config.steps)]

    def pack_step(step: int) -> list[Forest]:
        sessions = chosen[step]
        batch = [Group("demonstrations", sessions[0].task, sessions)]  # one group: what they share is computed once
        return pack(batch, algorithm.credit(batch), token_budget, seed=derive(seed, "pack", step))

    with ThreadPoolExecutor(1, "agentrl-pack") as ahead:
        packed = deque(ahead.submit(pack_step, step) for step in range(done, min(done + 2, config.steps)))
        for step in range(done, config.steps):
            yield step, await asyncio.wrap_future(packed.popleft())
            packed.extend(ahead.submit(pack_step, later) for later in range(step + 2, min(step + 3, config.steps)))


def keep_base(trainer: Trainer, folder: Path) -> None:
    """Have an adapter's trainer export the model that a warm start left, as the base of all that follows.

    It is written once, in place of a copy in each checkpoint, and engines get the adapter alone.
    """
    shutil.rmtree(folder, ignore_errors=True)
    trainer.export(folder)
    cast(AdapterTrainer, trainer).set_base(folder)


def note_times(run: Path, began: float, ended: float | None) -> None:
    """Write when a warm start went on, for the viewer's timeline: it has no rows among the metrics."""
    write_atomically(run / TIMES, orjson.dumps({"began": began, "ended": ended}))


def _folder_of(folder: Path, step: int) -> Path:
    return folder / f"{step:06}"


def _save(trainer: Trainer, folder: Path, step: int) -> None:
    """Save a trainer, and remove those of earlier steps."""
    saved = _folder_of(folder, step)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trainer.save(saved)
    except TrainerError:
        raise
    except Exception as error:
        _remove_all(folder, _folder_of(folder, saved_steps(folder)))
        free = shutil.disk_usage(folder.parent).free >> 20
        raise StoreError(f"can't save the warm start's step {step} in {saved} ({free:,} MiB free): {error}") from error
    _remove_all(folder, saved)


def _remove_all(folder: Path, but: Path) -> None:
    for path in folder.glob("*"):
        if path != but:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
