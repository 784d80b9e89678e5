"""A run on sessions that are read: conversations or pairs of files (`algo=sft data=FILE`), or a recorded run's.

It starts no engine, publishes nothing and needs no environment. It is measured by the loss, or the margin, on held-out
sessions.
"""

from __future__ import annotations

import asyncio
import filecmp
import math
from functools import partial
from itertools import islice
from pathlib import Path

from agentrl import cluster
from agentrl.common import custom_code, garbage
from agentrl.config import RunConfig
from agentrl.envs.data import identity
from agentrl.errors import ConfigError
from agentrl.rollout.engines.folder import ModelFacts
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.sources.files import Conversations, read_conversations
from agentrl.rollout.sources.judged import JudgedRows
from agentrl.rollout.sources.pairs import Compared
from agentrl.rollout.sources.reading import ListedTasks, ReadGroups
from agentrl.rollout.sources.runs import RecordedRun, is_run, read_run
from agentrl.rollout.sources.trees import TreeWriter
from agentrl.rollout.stream.batch_metrics import Evaluation
from agentrl.rollout.stream.buffer import Gate
from agentrl.rollout.stream.samplers import make_sampler
from agentrl.rollout.stream.stream import Stream
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.store.store import Store
from agentrl.train.algorithms import make_algorithm
from agentrl.train.display.console import Display
from agentrl.train.driver import setup
from agentrl.train.driver.learning import Learning
from agentrl.train.driver.loop import Loop
from agentrl.train.driver.opening import own_model, stoppable
from agentrl.train.driver.preparation import make_loop, prepare_reading
from agentrl.train.driver.result import TrainResult
from agentrl.train.offline import held_out, scores
from agentrl.train.plan.model_checks import prove_architecture
from agentrl.train.record import data_identity
from agentrl.train.record.run_folder import RunFolder
from agentrl.train.trainers.teachers.teachers import Teachers, check_teachers

ReadData = Conversations | JudgedRows | RecordedRun
TOKENIZER_TEXTS = 200
"""Conversations that the tiny model's tokenizer is made from."""


def read_data(config: RunConfig) -> ReadData:
    """Read what `data=` names.

    Raises:
        ConfigError: it can't be read.
    """
    assert config.data is not None
    algorithm = make_algorithm(config.algo)
    needs = algorithm.needs
    if not is_run(config.data.name):
        compared: Compared | None = "pairs" if needs.pairs else "labels" if needs.labels else None
        return algorithm.read_rows(config.data) or read_conversations(config.data, compared)
    head = needs.head
    if head is not None and head.classes:
        raise ConfigError(
            f"data={config.data.name}: algo={config.algo.name} learns {', '.join(head.labels)}, and recorded sessions "
            "have rewards: a file has labels, or algo=reward_model learns from rewards (algo.target=pairs or score)"
        )
    return read_run(config.data, demonstrated=not needs.engine, ends=head is not None)


async def train_on_data(config: RunConfig, folder: RunFolder, store: Store, display: Display) -> TrainResult:
    """Train on what is read, and measure the held-out loss, or margin, before and after."""
    data = await asyncio.to_thread(read_data, config)
    with display.part("loading the model"):
        base = await own_model(config, partial(_build_tiny, data), folder, display)
    if config.model.trust_remote_code:
        custom_code.allow(base)
    prove_architecture(config, base, display, trains=True)
    with cluster.opened(config.cluster, folder.path / "logs") as opened:
        async with cluster.while_not_lost(opened.lost):
            renderer = get_renderer(base, config.model.renderer, config.model.stop)
            policy = Policy(renderer, None, model=base)
            with display.part("reading the data"):
                await asyncio.to_thread(_prepare, config, data, policy, base)
            _identify(config, data, folder, display)
            await check_teachers(config, base)
            return await _train(config, data, policy, base, folder, store, display)


async def _train(
    config: RunConfig,
    data: ReadData,
    policy: Policy,
    base: Path,
    folder: RunFolder,
    store: Store,
    display: Display,
) -> TrainResult:
    shape = config.rollout
    source = ReadGroups(data, shape, config.seed, store, config.env.name)
    tasks = ListedTasks(data.tasks["train"], make_sampler(shape.sampler, config.seed))
    gate = Gate(shape.groups_per_step, config.steps, shape.staleness)
    stream = Stream(source, tasks, None, group_size=1, gate=gate)
    learner = Learning(config, folder.path, None, display.part, Teachers(config, folder.path))
    loop, _ = await asyncio.to_thread(make_loop, config, base, policy, stream, learner, folder, store, display)
    try:
        start = await prepare_reading(loop)
        before = held_out.read(folder.path, 0) if start else await _measure(loop, data, 0)
        loop.measure = partial(_measure, loop, data)
        display.phase(f"learning from data by {config.algo.name}", config.steps, "loss", start)
        with stoppable(loop, display), garbage.collect_less_often():
            done = await loop.run(start)
        after = await _measure(loop, data, done)
    finally:
        loop.trainer.close()
        await learner.close()
    if before is not None:
        display.say(f"held-out {_measured(loop)} {_described(before)} before training, {_described(after)} after it")
    kind = "recorded" if isinstance(data, RecordedRun) else "trainable"
    return TrainResult(folder.path, before, after, folder.metrics(), worked=after.worked, kind=kind)


async def _measure(loop: Loop, data: ReadData, step: int) -> Evaluation:
    """Measure held-out sessions after so many steps, and record it."""
    tasks, budget = data.tasks["eval"][: loop.config.eval.tasks], loop.config.trainer.token_budget

    async def compute() -> Evaluation:
        if loop.algorithm.needs.head is not None:
            return await scores.measure_scores(loop.trainer, loop.algorithm, data, tasks, budget)
        return await held_out.measure(loop.trainer, loop.algorithm, data, tasks, budget)

    with loop.display.part(f"measuring the held-out {_measured(loop)}"):
        found = await loop.recovering(step, compute)
    held_out.write(loop.folder.path, step, found)
    loop.display.say(f"step {step}: held-out {_measured(loop)} {_described(found)} of {found.tasks} groups")
    return found


def _measured(loop: Loop) -> str:
    return "margin" if held_out.compares(loop.algorithm) else "loss"


def _described(found: Evaluation) -> str:
    bounds = "" if math.isnan(found.low) else f" [{found.low:.3f}, {found.high:.3f}]"
    accuracy = found.metrics.get("accuracy")
    return f"{found.mean:.3f}{bounds}" + ("" if accuracy is None else f" (accuracy {accuracy:.0%})")


def _prepare(config: RunConfig, data: ReadData, policy: Policy, base: Path) -> None:
    """Render conversations, or see that recorded tokens are the model's."""
    assert config.data is not None
    if not isinstance(data, RecordedRun):
        own = ModelFacts.read(base).context
        limit = min((each for each in (config.data.max_tokens, own) if each is not None), default=None)
        data.prepare(TreeWriter(policy.renderer, config.data, limit))
        return
    recorded = Path(config.data.name) / "model" / "tokenizer.json"
    if not recorded.exists() or not filecmp.cmp(recorded, base / "tokenizer.json", shallow=False):
        raise ConfigError(
            f"data={config.data.name} has tokens of that run's model, and model={config.model.name} has another "
            f"tokenizer: model={config.data.name}/model, or one of its checkpoints, has the same"
        )


def _identify(config: RunConfig, data: ReadData, folder: RunFolder, display: Display) -> None:
    """Say which data the run has, and compare it with what it had before."""
    folder.data = {split: identity.of_tasks(tasks) for split, tasks in data.tasks.items()}
    for line in (*data.lines(), identity.described(folder.data), *data_identity.check_same(config, None, folder.data)):
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
