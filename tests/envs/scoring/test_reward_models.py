"""`reward_model`: batches, one copy on a device, failures that cost no score, long inputs, other formats, the plan."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from agentrl.config import ClusterConfig, RunConfig
from agentrl.envs.rewards import NamedReward, make_rewards
from agentrl.envs.scoring import score_server
from agentrl.envs.scoring.reward_models import TOO_LONG, ScoreModelReward
from agentrl.errors import ConfigError, InfraError, InvalidWeights
from agentrl.models import tiny
from agentrl.models.scoring import SETTINGS, ScoreHead, load_score_model, padding_token, parameters
from agentrl.overrides import validate
from agentrl.plugins.reward import check_reward
from agentrl.train.plan import preflight
from agentrl.train.plan.dry_run import reward_models
from agentrl.types import Message, Node, Session, Status, Task

CHATS = [
    [("user", "Hello?"), ("assistant", "Hi.")],
    [("system", "Be brief."), ("user", "Again?"), ("assistant", "No, " * 20)],
    [("user", "A?"), ("assistant", "b"), ("user", "C?"), ("assistant", "d")],
]
FAILURES = 200


def session(*messages: tuple[str, str]) -> Session:
    """A finished session of these messages, whose tokens are another model's."""
    made = Session("s", Task(id="t"), status=Status.COMPLETED)
    for place, (role, text) in enumerate(messages):
        message = Message(role=role, content=text)
        made.nodes.append(Node(place, place - 1 if place else None, message, [1], [False], [0.0]))
    return made


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("tiny") / "model", ["Hello there."])


def written(base: Path, out: Path, head: ScoreHead) -> Path:
    """A score model with a random head, in a folder with the base's tokenizer."""
    load_score_model(base, head, torch.float32, "eager", 1).save_pretrained(out)
    AutoTokenizer.from_pretrained(base).save_pretrained(out)
    return out


@pytest.fixture(scope="module")
def model(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(base, tmp_path_factory.mktemp("scores") / "model", ScoreHead(("score",)))


def made(model: Path, **settings: Any) -> tuple[NamedReward, ScoreModelReward]:
    (named,) = make_rewards({"r": {"name": "reward_model", "model": str(model), "device": "cpu", **settings}})
    assert isinstance(named, NamedReward)
    assert isinstance(named.reward, ScoreModelReward)
    return named, named.reward


@pytest.fixture
def reward(model: Path) -> Iterator[tuple[NamedReward, ScoreModelReward]]:
    named, inner = made(model, batch_tokens=500)
    yield named, inner
    asyncio.run(named.close())


@pytest.mark.slow
async def test_batches_give_the_scores_of_single_rows_from_one_copy(model: Path) -> None:
    alone, one = made(model)
    batched, other = made(model, batch_tokens=500)
    again, third = made(model, batch_tokens=500)
    assert other.server is third.server
    assert one.server is not None
    assert other.server is not None
    apart = [await alone(session(*chat)) for chat in CHATS]
    before = other.server.batches
    together = await asyncio.gather(*(each(session(*chat)) for each in (batched, again) for chat in CHATS * 4))
    assert other.server.batches - before < len(together)
    assert together == pytest.approx(apart * 8, abs=1e-5)
    assert [await alone(session(*chat)) for chat in CHATS] == apart
    server = other.server
    await batched.close()
    assert server.model is not None
    await again.close()
    assert server.model is None
    await alone.close()
    assert score_server.held_servers == {}


@pytest.mark.slow
async def test_a_models_failure_is_an_infrastructure_error_and_never_a_score(
    reward: tuple[NamedReward, ScoreModelReward],
) -> None:
    """Every one of many, whether it raises or gives no number; what follows is scored again."""
    named, inner = reward
    assert inner.server is not None
    working, fails = inner.server.model, 0

    class Broken:
        base_model, config = working.base_model, working.config
        parameters = working.parameters

        def score(self, hidden: torch.Tensor) -> torch.Tensor:
            nonlocal fails
            fails += 1
            if fails % 2:
                raise RuntimeError("out of memory")
            return torch.full((len(hidden), 1), math.nan)

    inner.server.model = Broken()
    found = await asyncio.gather(*(named(session(*CHATS[0])) for _ in range(FAILURES)), return_exceptions=True)
    assert {type(each) for each in found} == {InfraError}
    inner.server.model = working
    assert isinstance(await named(session(*CHATS[0])), float)


@pytest.mark.slow
async def test_what_is_too_long_has_no_reward_or_that_of_its_end_and_is_counted(model: Path) -> None:
    for overlong, given in (("none", False), ("tail", True)):
        named, _ = made(model, max_tokens=30, overlong=overlong)
        long, short = session(*CHATS[1]), session(*CHATS[0])
        assert (await named(long) is not None) == given
        assert await named(short) is not None
        assert (long.counters, short.counters) == ({TOO_LONG: 1}, {})
        await named.close()


@pytest.mark.slow
async def test_a_model_of_others_is_read_at_the_end_of_its_own_template(base: Path, tmp_path: Path) -> None:
    foreign = written(base, tmp_path / "foreign", ScoreHead(("bad", "good")))
    config = foreign / "config.json"
    config.write_text(config.read_text().replace(SETTINGS, "other"))
    tokenizer = AutoTokenizer.from_pretrained(foreign)
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}~"
    tokenizer.save_pretrained(foreign)
    named, inner = made(foreign)
    assert inner.server is not None
    ids = tokenizer("[user: Hello?][assistant: Hi.]~", return_tensors="pt", add_special_tokens=False).input_ids
    with torch.no_grad():
        want = inner.server.model(ids).logits.softmax(-1)[0]
    assert await named(session(*CHATS[0])) == pytest.approx(float(want[1]), abs=1e-5)
    await named.close()
    named, _ = made(foreign, label="bad")
    assert await named(session(*CHATS[0])) == pytest.approx(float(want[0]), abs=1e-5)
    await named.close()
    with pytest.raises(ConfigError, match="has bad, good"):
        made(foreign, label="fine")


@pytest.mark.slow
async def test_it_keeps_the_contract_of_rewards_and_a_language_model_is_refused(base: Path, model: Path) -> None:
    sessions = [session(*chat) for chat in CHATS]
    assert await check_reward("reward_model", sessions, model=str(model), device="cpu", squash=True) == []
    with pytest.raises(InvalidWeights, match=r"holds no whole score model: missing: score\.weight"):
        made(base)
    with pytest.raises(ConfigError, match="no-such-folder"):
        made(Path("no-such-folder"))


def test_the_padding_token_never_ends_a_turn(base: Path, model: Path) -> None:
    """transformers would read the score before it."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    config = load_score_model(base, ScoreHead(("score",)), torch.float32, "eager").config
    assert config.pad_token_id != tokenizer.eos_token_id
    config.eos_token_id, config.pad_token_id = [0, tokenizer.eos_token_id], 0
    found = padding_token(base, config)
    assert found is not None
    assert found not in (0, tokenizer.eos_token_id)


def test_its_memory_is_in_the_plan_and_several_copies_are_refused(model: Path) -> None:
    rewards = {"learned": {"name": "reward_model", "model": str(model), "device": "cpu"}}
    config = validate({"env": {"name": "calculator"}, "rewards": rewards}, RunConfig)
    (found,) = reward_models(config.rewards).values()
    assert found.device == "cpu"
    assert found.weights == 4 * parameters(model)
    preflight._check_resident(config.rewards, config.cluster)
    for cluster in ({"rewards": 2}, {"environments": 2}):
        wrong = validate({"env": {"name": "calculator"}, "rewards": rewards, "cluster": cluster}, RunConfig)
        with pytest.raises(ConfigError, match=r"holds a model, of which there would be a copy in each"):
            preflight._check_resident(wrong.rewards, wrong.cluster)
    preflight._check_resident({}, ClusterConfig())
