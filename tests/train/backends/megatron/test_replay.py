"""Routes from the rollout: drawn by the embedded engine, packed, and followed by Megatron in training."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import agentrl
from agentrl.attachments import routed_experts
from agentrl.config import AlgoConfig, EngineConfig, RunConfig
from agentrl.envs.registry import factory
from agentrl.errors import ConfigError
from agentrl.models import tiny
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.sessions.tree.generation import generate
from agentrl.train.algorithms.credit import Credit, NodeAdvantage
from agentrl.train.driver import launch
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.megatron.layout import layout_of
from agentrl.train.trainers.megatron.settings import MegatronConfig
from agentrl.types import FinishReason, Message, Sampling, Session, Task, Turn
from tests.rollout.engines.conftest import TEXTS
from tests.rollout.engines.routed import mixture
from tests.sessions.fakes import DiceEngine
from tests.train.backends.megatron import zoo
from tests.train.backends.megatron.batches import sizes
from tests.train.backends.megatron.world import World
from tests.train.trees import as_group

WORK = "tests.train.backends.megatron.work_replay"


async def rollout(folder: Path, sessions: int = 3, turns: int = 3) -> list[Session]:
    """Sessions of several turns each, with branches, sampled from a model whose experts are recorded."""
    engine = LocalEngine(folder, EngineConfig(max_batch=4, device="cpu", routed_experts=True))
    dice = np.random.default_rng(0)

    def said(count: int) -> list[int]:
        return [int(token) for token in dice.integers(0, zoo.VOCABULARY, count)]

    async def play(session: Session) -> Session:
        head = tree.add(session, None, Message(role="user", content="x"), said(12)).id
        for turn in range(turns):
            for branch in range(2 if turn == 1 else 1):
                opening, sampling = said(2), Sampling(max_new_tokens=20, seed=turn * 7 + branch)
                ids = [*tree.path_ids(session, head), *opening]
                record = tree.find_unrecorded(session, head, engine.capabilities.attachments)
                stream = generate(engine, session.id, ids, replace(sampling, record=record), time.monotonic() + 120)
                drawn = [item async for item in stream if isinstance(item, Turn)]
                message = Message(role="assistant", content="y")
                ended = replace(drawn[0], finish_reason=FinishReason.STOP)  # nothing can follow what a limit cut
                node = tree.add_turn(session, head, opening, ended, sampling, message)
            head = tree.add(session, node.id, Message(role="tool", content="z"), said(5)).id
        return session

    try:
        return await asyncio.gather(*[play(Session(f"s{i}", Task(id="t"))) for i in range(sessions)])
    finally:
        await engine.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zoo.write("qwen3_moe", tmp_path_factory.mktemp("zoo"))


@pytest.fixture(scope="module")
def forests(folder: Path) -> list[Forest]:
    sessions = asyncio.run(rollout(folder))
    credit = Credit({(s.id, n.id): (NodeAdvantage(1.0, 0.1),) for s in sessions for n in s.nodes if n.sampled})
    return pack([as_group(sessions)], credit, 200)


@pytest.fixture(scope="module")
def moved(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model a little later: its routers moved, so that some tokens would go elsewhere."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    dice = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("mlp.gate.weight"):
                weight += 0.1 * weight.std() * torch.randn(weight.shape, generator=dice)
    out = tmp_path_factory.mktemp("moved")
    model.save_pretrained(out)
    return out


def train_once(world: World, job: str, folder: Path, forests: list[Forest], replay: str) -> Any:
    """What a worker answers to a job of `work_replay`."""
    from transformers import AutoConfig

    config = MegatronConfig.model_validate({"moe": {"routing_replay": replay}})
    layout = layout_of(config, AutoConfig.from_pretrained(folder))
    given: tuple[Any, ...] = (str(folder), forests, config, layout, AlgoConfig(name="reinforce"))
    return world.run(f"{WORK}:{job}", *given, size=layout.ranks, **sizes(layout))[0]


def trained(world: World, folder: Path, forests: list[Forest], replay: str) -> tuple[float, float]:
    """How much of what was recorded the trainer follows, and its mean |log-probability difference| to the engine."""
    found = train_once(world, "routed", folder, forests, replay)
    same: list[bool] = []
    apart: list[float] = []
    for forest, logp, maps in zip(forests, found["logps"], found["maps"], strict=True):
        assert forest.routed_experts is not None
        assert len(maps) == forest.routed_experts.shape[1] == zoo.LAYERS - 1
        for layer, went in enumerate(maps):
            experts = forest.routed_experts[:, layer].long()
            known = experts[:, 0] >= 0
            expected = torch.zeros_like(went).scatter(1, experts.clamp(min=0), True)
            same += (went == expected).all(1)[known].tolist()
        at = forest.weight > 0
        apart += (logp - forest.behaviour_logp)[at].abs().tolist()
    return float(np.mean(same)), float(np.mean(apart))


@pytest.mark.slow
def test_nearly_every_token_of_a_rollout_has_its_experts(forests: list[Forest]) -> None:
    """Unknown are those that nobody computed: each branch's last token."""
    for forest in forests:
        assert forest.routed_experts is not None
        unknown = torch.nonzero(forest.routed_experts[:, 0, 0] < 0).flatten()
        assert all(int(forest.end[i]) == int(i) + 1 for i in unknown)
        assert 0 < len(unknown) < len(forest) / 5


@pytest.mark.slow
def test_training_uses_the_engines_experts_even_where_its_own_router_would_not(
    world: World, folder: Path, moved: Path, forests: list[Forest]
) -> None:
    follows, apart = trained(world, folder, forests, "rollout")
    assert follows == 1.0
    assert apart < 1e-4  # the very weights that drew them
    follows, with_replay = trained(world, moved, forests, "rollout")
    own, without = trained(world, moved, forests, "off")
    assert follows == 1.0
    assert own < 0.97  # some would have gone elsewhere
    assert with_replay < without


@pytest.mark.slow
def test_a_run_records_publishes_and_replays(tmp_path: Path) -> None:
    """The whole way by configuration alone: the engine records because the trainer is to replay."""
    pytest.importorskip("megatron.core")
    folder = mixture(tmp_path / "model", TEXTS, context=4096)
    result = agentrl.train(
        "calculator",
        model=str(folder),
        engine={"device": "cpu"},
        trainer={"name": "megatron", "moe": {"routing_replay": "rollout"}},
        algo={"name": "reinforce", "entropy_coef": 0.01},  # which trains on sessions that earned nothing, too
        steps=2,
        seed=0,
        run_dir=str(tmp_path / "run"),
        **{"rollout.groups_per_step": 2, "rollout.group_size": 2, "rollout.turn_tokens": 24, "eval.tasks": 2},
    )
    with Store(tmp_path / "run" / "sessions.db") as store:
        sampled = [node for session in store.sessions() for node in session.nodes if node.sampled]
    assert sampled
    assert all(routed_experts.NAME in node.attachments for node in sampled)
    assert [row["version"] for row in result.metrics] == [1, 2]
    assert all(row["mismatch/abs_mean"] < 1e-3 for row in result.metrics)


@pytest.mark.slow
def test_experts_of_another_model_are_refused(world: World, folder: Path, forests: list[Forest]) -> None:
    parts = (np.s_[:, :2], np.s_[:, :, :1])
    experts = forests[0].routed_experts
    assert experts is not None
    others = [replace(forests[0], routed_experts=experts[part]) for part in parts]
    assert train_once(world, "refused", folder, others, "rollout")["said"] == [
        "routed experts were recorded of 2 layers; the trainer's model has 3",
        "1 experts were recorded for each token; the model's routers choose 2",
    ]


class Forgetful(DiceEngine):
    """An engine that records nothing, built as `engine=module:factory` builds one."""

    opened = closed = 0

    async def close(self) -> None:
        Forgetful.closed += 1


def forgetful(*_: Any) -> Forgetful:
    Forgetful.opened += 1
    return Forgetful()


@pytest.mark.slow
async def test_an_engine_that_records_no_experts_is_refused_by_name_and_closed(tmp_path: Path) -> None:
    path = f"{__name__}:forgetful"
    config = RunConfig.model_validate(
        {"env": "calculator", "engine": path, "trainer": {"name": "megatron", "moe": {"routing_replay": "rollout"}}}
    )
    folder = tiny.build(tmp_path / "tiny", TEXTS)
    async with AsyncExitStack() as opened:
        with pytest.raises(ConfigError, match=f"routing_replay=rollout: engine={path} does not"):
            await launch.load_policy(opened, [(config, factory("calculator"))], folder, tmp_path)
    assert Forgetful.opened == Forgetful.closed


@pytest.mark.slow
def test_a_model_without_experts_can_not_be_replayed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="moe is set, and the model has no experts"):
        agentrl.train(
            "calculator",
            engine={"device": "cpu"},
            trainer={"name": "megatron", "moe": {"routing_replay": "rollout"}},
            steps=1,
            run_dir=str(tmp_path / "run"),
        )
