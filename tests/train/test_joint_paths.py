"""A critic of joint paths reads what all agents were told and said, and nothing of the turn that it is to foresee."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any, Literal

import pytest

from agentrl.config import RunConfig
from agentrl.errors import ConfigError, InvalidInput
from agentrl.models import tiny
from agentrl.overrides import merge, spread, validate
from agentrl.train.algorithms import make_algorithm
from agentrl.train.algorithms.advantages.teams.maac import MaacConfig
from agentrl.train.algorithms.values import compute_values
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.joint_paths import JointPaths, join_agents
from agentrl.train.forest.packing import pack_credited
from agentrl.train.plan.model_checks import require_one_tokenizer
from agentrl.train.plan.preflight import check_training
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Group, Session, Status, Task
from tests.train.backends.test_critic import critic_of
from tests.train.backends.test_torch import CPU, parameters, same
from tests.train.trees import as_group, environment_node, sampled_node

AGENTS = ("left", "middle", "right")


def play(rng: random.Random, name: str, *, at_once: bool) -> tuple[Session, dict[int, set[int]]]:
    """A session of three agents, and for each turn what its critic may read: all nodes before that turn, or round.

    Every node has tokens that no other has.
    """
    session = Session(name, Task(id="t"), group="g", status=Status.COMPLETED)
    heads: dict[str, int | None] = dict.fromkeys(AGENTS)
    known: dict[int, set[int]] = {}

    def tell(agent: str) -> None:
        node = environment_node(session, heads[agent], [100 + 2 * len(session.nodes), 101 + 2 * len(session.nodes)])
        node.agent, heads[agent] = agent, node.id

    for agent in AGENTS:
        tell(agent)
    for _ in range(3):
        before = {node.id for node in session.nodes}
        speaking = AGENTS if at_once else (rng.choice(AGENTS),)
        for agent in speaking:
            turn = sampled_node(session, heads[agent], [500 + len(session.nodes)], opening=[50], reward=rng.random())
            turn.agent, heads[agent], known[turn.id] = agent, turn.id, before
        for agent in rng.sample(AGENTS, rng.randint(1, 3)):
            tell(agent)
    session.agent_rewards = {agent: rng.random() for agent in AGENTS}
    return session, known


@pytest.mark.parametrize("seed", range(10))
def test_before_a_turn_stands_all_that_any_agent_was_told_or_said_until_it_began_and_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    session, known = play(rng, "s", at_once=seed % 2 == 0)
    ids = {tuple(node.token_ids): node.id for node in session.nodes}
    for view in session.by_agent():
        path, places = join_agents(session, view)
        assert sorted(ids[tuple(node.token_ids)] for node in path.nodes) == [node.id for node in session.nodes]
        assert [node.parent for node in path.nodes] == [None, *range(len(path.nodes) - 1)]
        agent = view.main_agent
        for own in view.nodes:
            node = path.nodes[places[own.id]]
            assert (node.token_ids, node.trainable) == (own.token_ids, own.trainable)
            if own.sampled:
                before = [ids[tuple(each.token_ids)] for each in path.nodes[: node.id]]
                assert set(before) == known[ids[tuple(own.token_ids)]]
                told = itertools.takewhile(lambda i: not session.nodes[i].sampled, sorted(before, reverse=True))
                if any(session.nodes[i].agent == agent for i in told):
                    assert path.nodes[node.id - 1].agent == agent, "its own message is the last"
        assert not any(any(node.trainable) for node in path.nodes if node.agent != agent)


def matching(step: int = 0) -> list[Group]:
    """Two agents are told a bit each; both get a reward where the bits are equal, whatever they say."""
    sessions = []
    for number in range(8):
        bits = {"left": number % 2, "right": number // 2 % 2}
        session = Session(f"{step}-{number}", Task(id="t"), group="g", status=Status.COMPLETED)
        for agent, bit in bits.items():
            environment_node(session, None, [8, 10 + bit]).agent = agent
        for place, agent in enumerate(bits):
            sampled_node(session, place, [12 + (7 * step + 5 * number + place) % 20]).agent = agent
        session.agent_rewards = dict.fromkeys(bits, float(bits["left"] == bits["right"]))
        sessions.append(session)
    return [as_group(sessions)]


def forests_of(trainer: TorchTrainer, groups: list[Group]) -> tuple[list[Forest], list[Forest], dict[str, float]]:
    """What the policy learns from, what its critic does, and metrics of credit."""
    algorithm, views = trainer.algorithm, [view for group in groups for view in group.by_agent()]
    paths = JointPaths.of(groups, views) if algorithm.reads_joint_paths else None
    values = compute_values(trainer, views, algorithm.critic_config, 256, paths=paths)
    credit, forests = pack_credited(algorithm, views, values, 256, 0)
    return forests, [] if paths is None else paths.pack(algorithm, views, credit, 256, 0), credit.metrics


def trainer_on(folder: Path, path: Literal["agent", "joint"] = "joint") -> TorchTrainer:
    algo = MaacConfig(value_path=path, value_trunk="own", lr=1e-3, value_trunk_lr=3e-3)
    return TorchTrainer(folder, CPU, algo, total_steps=40)


def test_the_critic_learns_the_tokens_that_the_policy_learns_with_their_weights_and_targets(tiny_llama: Path) -> None:
    groups = matching()
    views = [view for group in groups for view in group.by_agent()]
    trainer = trainer_on(tiny_llama)
    paths = JointPaths.of(groups, views)
    values = compute_values(trainer, views, trainer.algorithm.critic_config, 256, paths=paths)
    credit, forests = pack_credited(trainer.algorithm, views, values, 256, 0)
    read = paths.pack(trainer.algorithm, views, credit, 256, 0)
    for forest in read:
        forest.check()
    own, joint = ([forest.rows() for forest in each] for each in (forests, read))
    weights = [sum(float(rows.weight.sum()) for rows in each) for each in (own, joint)]
    targets = [sum(float((rows.weight * rows.returns).sum()) for rows in each) for each in (own, joint)]  # type: ignore[operator]
    assert weights[0] == pytest.approx(weights[1])
    assert targets[0] == pytest.approx(targets[1])
    assert sum(map(len, read)) > sum(map(len, forests)), "a joint path has the other agent's tokens too"


@pytest.mark.slow
def test_of_a_value_that_no_agent_sees_alone_a_joint_path_tells_all_and_an_agents_own_nothing(tiny_llama: Path) -> None:
    explained = {}
    for path in ("joint", "agent"):
        trainer = trainer_on(tiny_llama, path)  # type: ignore[arg-type]
        for step in range(20):
            forests, read, metrics = forests_of(trainer, matching(step))
            trainer.step(forests, None, read)
        explained[path] = metrics["critic/explained_variance"]
    assert explained["joint"] > 0.8
    assert explained["agent"] < 0.3


@pytest.mark.slow
def test_a_critic_of_joint_paths_goes_on_from_a_checkpoint_bit_for_bit_and_as_no_other(
    tiny_llama: Path, tmp_path: Path
) -> None:
    straight = trainer_on(tiny_llama)
    rows = []
    for step in range(3):
        forests, read, _ = forests_of(straight, matching(step))
        if step == 2:
            straight.save(tmp_path / "state")
        rows.append(straight.step(forests, None, read))
    second = trainer_on(tiny_llama)
    second.load(tmp_path / "state")
    forests, read, _ = forests_of(second, matching(2))
    assert second.step(forests, None, read) == rows[2]
    assert same(parameters(second), parameters(straight))
    assert same(critic_of(second).head.state_dict(), critic_of(straight).head.state_dict())
    with pytest.raises(ConfigError, match=r"algo.value_path=agent: the checkpoint's critic has joint; resume with"):
        trainer_on(tiny_llama, "agent").load(tmp_path / "state")
    with pytest.raises(InvalidInput, match=r"algo.value_path=joint: the critic learns from forests of its own"):
        second.step(forests)


@pytest.mark.slow
def test_policies_of_different_tokenizers_have_no_joint_path(tmp_path: Path) -> None:
    shape = tiny.TinyShape(vocab=400, layers=1, width=64)
    texts = {"base": "numbers and words, and what they are worth", "other": "colours that somebody sees"}
    base, other = (tiny.build(tmp_path / name, [text] * 9, shape=shape) for name, text in texts.items())
    settings = {**JOINT, "agents.listener": "second", "policies.second.algo": "grpo"}

    def check(model: Path) -> None:
        config = validate(merge(spread(settings), spread({"policies.second.model": str(model)})), RunConfig)
        algorithms = {name: make_algorithm(own.algo) for name, own in config.learners.items()}
        require_one_tokenizer(algorithms, config.model.name, config.policies, base)

    check(base)
    with pytest.raises(ConfigError, match=r"policies.second.model=.*other has another tokenizer than model=tiny"):
        check(other)


JOINT = {"env": "speaker_listener", "algo.name": "maac", "algo.value_path": "joint"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"env": "calculator"}, r"several agents' paths, and Calculator has one agent"),
        ({"env": "calculator", "agent": "true"}, r"agent='true' is a program: use algo.value_path=agent"),
        ({"agents.listener": "fixed", "policies.fixed": "expert"}, r"policies.fixed=expert, which plays listener, has"),
        (
            {"trainer": "examples/plugins/row_trainer.py:RowTrainer"},
            r"the critic of trainer=.* torch, megatron",
        ),
    ],
)
def test_where_there_is_no_joint_path_a_critic_of_it_is_refused_by_name(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_training(validate(merge(spread(JOINT), spread(settings)), RunConfig))
