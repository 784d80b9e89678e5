"""A run on sessions that are read: conversations or pairs of files (`algo=sft data=FILE`), or a recorded run's.

It starts no engine, publishes nothing and needs no environment. It is measured by the loss, or the margin, on held-out
sessions.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import AsyncExitStack
from functools import partial
from itertools import islice
from pathlib import Path

from agentrl import cluster
from agentrl.common import garbage
from agentrl.config import DataConfig
from agentrl.envs.data import identity
from agentrl.errors import ConfigError
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.sources.reading import ListedTasks, ReadGroups
from agentrl.rollout.sources.runs import RecordedRun
from agentrl.rollout.stream.batch_metrics import Evaluation
from agentrl.rollout.stream.buffer import Gate
from agentrl.rollout.stream.samplers import make_sampler
from agentrl.rollout.stream.stream import Stream
from agentrl.sessions.renderers import get_renderer
from agentrl.train.driver import lost_tokens, setup
from agentrl.train.driver.learning import Learning
from agentrl.train.driver.loop import Loop
from agentrl.train.driver.opening import OpenRun, stoppable
from agentrl.train.driver.preparation import make_loop, prepare_reading
from agentrl.train.driver.result import TrainResult
from agentrl.train.offline import held_out, scores
from agentrl.train.offline.source import ReadData, prepare_data, read_data
from agentrl.train.record import data_identity
from agentrl.train.record.best import describe_best
from agentrl.train.trainers.teachers.teachers import check_teachers
from agentrl.types import MAIN

TOKENIZER_TEXTS = 200
"""Conversations that the tiny model's tokenizer is made from."""


async def train_on_data(run: OpenRun, source: DataConfig) -> TrainResult:
    """Train on what is read, and measure the held-out loss, or margin, before and after."""
    config, display = run.config, run.display
    data = await asyncio.to_thread(read_data, source, run.algorithm)
    base = await run.load_model(partial(_build_tiny, data))
    nodes = run.opened.enter_context(cluster.open_cluster(config.cluster, run.folder.path / "logs"))
    await run.opened.enter_async_context(cluster.while_not_lost(nodes.lost))
    renderer = get_renderer(base, config.model.renderer, config.model.stop)
    policy = Policy(renderer, None, model=base)
    with display.part("reading the data"):
        await asyncio.to_thread(prepare_data, source, data, renderer, base, config.model.name)
    _identify(run, data)
    await check_teachers(config.teachers, config.learners[MAIN], config.rollout, run.algorithm, base)
    return await _train(run, data, policy, base)


async def _train(run: OpenRun, data: ReadData, policy: Policy, base: Path) -> TrainResult:
    config, folder, display = run.config, run.folder, run.display
    shape, trees = config.rollout, len(data.tasks["train"])
    if shape.groups_per_step > trees:
        display.warn(
            f"rollout.groups_per_step={shape.groups_per_step}, and the data has {trees} groups or trees of rows: each "
            "step trains some of them more than once"
        )
    source = ReadGroups(data, shape, config.seed, run.store, config.env.name)
    tasks = ListedTasks(data.tasks["train"], make_sampler(shape.sampler, config.seed))
    gate = Gate(shape.groups_per_step, config.steps, shape.staleness)
    stream = Stream(source, tasks, None, group_size=1, gate=gate)
    learner = Learning.of(config.learning(MAIN), folder.path, None, display.part)
    loop, _ = await asyncio.to_thread(make_loop, run, base, policy, stream, learner)
    async with AsyncExitStack() as training:  # closed before the result is told: its checkpoints are whole then
        training.push_async_callback(loop.close)
        start = await prepare_reading(loop)
        before = held_out.read(folder.path, 0) if start else await _measure(loop, data, 0)
        loop.measure = partial(_measure, loop, data)
        display.phase(f"learning from data by {config.algo.name}", config.steps, "loss", start)
        with stoppable(loop, display), garbage.collect_less_often():
            done = await loop.run(start)
        after = await _measure(loop, data, done)
        await asyncio.to_thread(folder.seals.add, done, lines={})
    if before is not None:
        display.say(
            f"held-out {_describe_measure(loop)} {_describe(before)} before training, {_describe(after)} after it"
        )
    last = {"step": done, **{f"eval/{name}": value for name, value in after.metrics.items()}}
    for line in describe_best(folder.path, folder.checkpoints(), folder.metrics(), config.keep_best, last):
        display.say(line)
    kind = "recorded" if isinstance(data, RecordedRun) else "trainable"
    rows = folder.metrics()
    worked = after.worked or any(row.get(lost_tokens.TRAINED) for row in rows)
    return TrainResult(folder.path, before, after, rows, worked=worked, kind=kind)


async def _measure(loop: Loop, data: ReadData, step: int) -> Evaluation:
    """Measure held-out sessions after so many steps, and record it."""
    tasks, budget = data.tasks["eval"][: loop.config.eval.tasks], loop.config.trainer.token_budget

    async def compute() -> Evaluation:
        if loop.algorithm.needs.head is not None:
            return await scores.measure_scores(loop.trainer, loop.algorithm, data, tasks, budget)
        return await held_out.measure(loop.trainer, loop.algorithm, data, tasks, budget)

    with loop.display.part(f"measuring the held-out {_describe_measure(loop)}"):
        found = await loop.recovering(step, compute)
    held_out.write(loop.folder.path, step, found)
    loop.display.say(f"step {step}: held-out {_describe_measure(loop)} {_describe(found)} of {found.tasks} groups")
    return found


def _describe_measure(loop: Loop) -> str:
    return "margin" if held_out.compares(loop.algorithm) else "loss"


def _describe(found: Evaluation) -> str:
    if math.isnan(found.mean):
        return "unknown (no pair is held out)" if "accuracy" in found.metrics else "unknown (it is not finite)"
    bounds = "" if math.isnan(found.low) else f" [{found.low:.3f}, {found.high:.3f}]"
    accuracy = found.metrics.get("accuracy")
    return f"{found.mean:.3f}{bounds}" + ("" if accuracy is None else f" (accuracy {accuracy:.0%})")


def _identify(run: OpenRun, data: ReadData) -> None:
    """Say which data the run has, and compare it with what it had before."""
    config, folder, display = run.config, run.folder, run.display
    folder.data = {split: identity.of_tasks(tasks) for split, tasks in data.tasks.items()}
    accept = config.accept_changed_data
    told = data_identity.check_same(config.resume, config.rerun, None, folder.data, accept_changed=accept)
    for line in (*data.lines(), identity.describe_identity(folder.data), *told):
        if line.startswith("warning: "):
            display.warn(line.removeprefix("warning: "))
        else:
            display.say(line)


async def _build_tiny(data: ReadData, out: Path, seed: int) -> Path:
    """The tiny model for conversations: random weights, and a tokenizer made from some of them."""
    from agentrl.models import tiny

    if isinstance(data, RecordedRun):
        raise ConfigError(
            f"model={setup.TINY}: recorded tokens are of a model: model={data.config.name}/model has them"
        )
    texts = [
        "".join(message.text for message in each.messages)
        if each.plain
        else tiny.render([{"content": ""} | m.model_dump(exclude_none=True) for m in each.messages], each.tools)
        for each in islice(data.messages(), TOKENIZER_TEXTS)
    ]
    return await asyncio.to_thread(tiny.build, out, texts, seed=seed)
