"""The critic: a row and a bias on the policy's trunk, or on a trunk of its own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from agentrl.attachments import critic_view
from agentrl.config import AlgoConfig, TrainerConfig
from agentrl.errors import ConfigError, InvalidInput
from agentrl.train.algorithms.advantages.grpo import Grpo
from agentrl.train.algorithms.advantages.ppo import Ppo, PpoConfig
from agentrl.train.algorithms.credit import Credit, NodeAdvantage, NodeKey
from agentrl.train.algorithms.losses import value_error
from agentrl.train.algorithms.values import compute_values
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import pack, pack_credited
from agentrl.train.trainers import Critic, Trainer, make_trainer
from agentrl.train.trainers.critic import ValueModel
from agentrl.train.trainers.torch_trainer.batch import trunk_of
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Group
from tests.train.backends.test_torch import CPU, parameters, same
from tests.train.trees import as_group, leaf_credit, leaves, linear_session, path, random_session

ALGO = PpoConfig(lr=1e-2)


def trainer_on(folder: Path, algo: AlgoConfig = ALGO, **more: int) -> TorchTrainer:
    return TorchTrainer(folder, CPU, algo, **more)


def batch(step: int = 0) -> list[Group]:
    """Two groups; what a session is worth can be told from its first token."""

    def session(g: int, i: int):  # type: ignore[no-untyped-def]
        turns = [[12 + (7 * step + 5 * i + 3 * j + g) % 30 for j in range(6)]] * 2
        return linear_session(f"{g}{i}", [8 + i, 9, 10 + g], turns, reward=float(i % 3))

    return [as_group([session(g, i) for i in range(5)], str(g)) for g in range(2)]


def forests_of(trainer: TorchTrainer, groups: list[Group]) -> list[Forest]:
    credit = trainer.algorithm.credit(groups, compute_values(trainer, groups, trainer.algorithm.critic_config, 64))
    return pack(groups, credit, 64, merge=trainer.algo.merge)


def critic_of(trainer: TorchTrainer) -> ValueModel:
    assert trainer.critic is not None
    return trainer.critic


def awake(trainer: TorchTrainer, seed: int = 5) -> tuple[Tensor, float]:
    """Give the critic, which begins as a constant, something to say: its row over √d, and its bias."""
    head, generator = critic_of(trainer).head, torch.Generator().manual_seed(seed)
    head.weight.data.copy_(torch.randn(head.weight.shape, generator=generator))
    critic_of(trainer).start(0.3)
    return head.weight.detach()[0] / head.weight.shape[1] ** 0.5, 0.3


@pytest.mark.slow
@pytest.mark.parametrize("trunk", ["policy", "own"])
def test_the_value_of_a_token_is_a_row_times_the_hidden_state_that_predicts_it_and_a_bias(
    trunk: str, tiny_llama: Path
) -> None:
    algo = ALGO.model_copy(update={"value_trunk": trunk})
    trainer, plain = trainer_on(tiny_llama, algo), AutoModelForCausalLM.from_pretrained(tiny_llama)
    row, bias = awake(trainer)
    forests = forests_of(trainer, batch())
    found = trainer.values(forests)
    for forest, value in zip(forests, found, strict=True):
        parents = forest.parents().tolist()
        for at in torch.nonzero(forest.weight).flatten().tolist():
            ids, up = [], parents[at]
            while up >= 0:
                ids.append(int(forest.token_ids[up]))
                up = parents[up]
            with torch.no_grad():
                states = plain.base_model(torch.tensor([ids[::-1]])).last_hidden_state
                assert float(value[at]) == pytest.approx(float(states[0, -1] @ row + bias), abs=1e-4)
        assert not value[forest.weight == 0].any()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_the_critics_loss_on_a_forest_has_the_gradient_of_all_its_paths(seed: int, tiny_llama: Path) -> None:
    """Every path is a row of its own with its own return; a shared token's weight is divided among them."""
    rng = random.Random(seed)
    sessions = [random_session(rng, f"s{i}", [8, 9], depth=4, branching=3) for i in range(2)]
    credit, returns = leaf_credit(rng, sessions)
    for key, shares in credit.shares.items():
        size = len(next(s for s in sessions if s.id == key[0]).nodes[key[1]].token_ids)
        credit.shares[key] = tuple(
            NodeAdvantage(0.0, share.weight, [0.0] * size, [number(share)] * size) for share in shares
        )
    algo = PpoConfig(value_coef=1.0)
    trainer = trainer_on(tiny_llama, algo)
    row, bias = awake(trainer)
    for forest in pack([as_group([s], s.id) for s in sessions], credit, 64):
        trainer.backward(trainer.prepare(forest))
    ours = [p.grad for p in trainer.model.parameters()]
    head = critic_of(trainer).head
    assert head.weight.grad is None, "the policy's passes leave the head as it is"
    plain = AutoModelForCausalLM.from_pretrained(tiny_llama)
    total = torch.zeros(())
    for session in sessions:
        for leaf in leaves(session):
            nodes = path(session, leaf)
            ids = [t for node in nodes for t in node.token_ids]
            values = plain.base_model(torch.tensor([ids])).last_hidden_state[0] @ row + bias
            at = 0
            for node in nodes:
                for share in credit.shares.get((session.id, node.id), ())[:1]:
                    places = [at + i for i, on in enumerate(node.trainable) if on]
                    error = values[torch.tensor(places) - 1] - returns[session.id, leaf]
                    total = total + share.weight * 0.5 * error.square().sum()
                at += len(node.token_ids)
    total.backward()  # type: ignore[no-untyped-call]
    theirs = [p.grad for p in plain.parameters()]
    for one, other in zip(ours, theirs, strict=True):
        assert one is not None
        assert other is not None
        assert float((one - other).norm() / other.norm().clamp(min=1e-6)) < 1e-4


def number(share: NodeAdvantage) -> float:
    assert isinstance(share.advantage, float)
    return share.advantage


def test_a_clipped_value_error_is_never_less_and_has_no_gradient_beyond_the_clip(tiny_llama: Path) -> None:
    trainer = trainer_on(tiny_llama)
    [forest, *_] = forests_of(trainer, batch())
    rows = forest.rows()
    assert rows.returns is not None
    assert rows.value is not None
    values = torch.linspace(-3, 3, len(rows), requires_grad=True)
    plain = value_error(values, rows, None)
    clipped = value_error(values, rows, 0.5)
    assert bool((clipped >= plain - 1e-7).all())
    [gradient] = torch.autograd.grad(clipped.sum(), values)
    moved = values.detach() - rows.value
    gone_too_far = (moved.abs() > 0.5) & (moved.sign() == (rows.returns - rows.value).sign())
    overshot = (values.detach() - rows.returns).abs() > (rows.value + 0.5 * moved.sign() - rows.returns).abs()
    assert bool((gone_too_far & ~overshot).any())
    assert not gradient[gone_too_far & ~overshot].any()
    assert bool(gradient[moved.abs() < 0.5].any())


@pytest.mark.parametrize(
    "algo",
    [
        ALGO,
        PpoConfig(lr=1e-2, epochs=2, kl_coef=0.1, value_clip=0.2, value_lr=0.1, gae_lambda=0.9, value_epochs=2),
        PpoConfig(lr=1e-2, value_trunk="own", value_trunk_lr=2e-3, value_epochs=2, schedule="linear"),
    ],
)
@pytest.mark.slow
def test_two_steps_saved_and_two_more_equal_four_steps_bit_for_bit(
    algo: AlgoConfig, tiny_llama: Path, tmp_path: Path
) -> None:
    straight = trainer_on(tiny_llama, algo, total_steps=4)
    expected = [straight.step(forests_of(straight, batch(step))) for step in range(4)]
    first = trainer_on(tiny_llama, algo, total_steps=4)
    for step in range(2):
        first.step(forests_of(first, batch(step)))
    first.save(tmp_path / "state")
    second = trainer_on(tiny_llama, algo, total_steps=4)
    second.load(tmp_path / "state")
    assert [second.step(forests_of(second, batch(step))) for step in (2, 3)] == expected[2:]
    assert same(parameters(second), parameters(straight))
    one, two = critic_of(straight), critic_of(second)
    assert bool(one.head.weight.any())
    assert one.started
    assert two.started
    assert same(one.head.state_dict(), two.head.state_dict())
    if one.trunk is not None:
        assert two.trunk is not None
        assert same(one.trunk.state_dict(), two.trunk.state_dict())
        assert not same(one.trunk.state_dict(), trunk_of(straight.model).state_dict())


@pytest.mark.parametrize("trunk", ["policy", "own"])
@pytest.mark.slow
def test_the_critic_learns_to_distinguish_good_sessions_from_bad_ones(
    trunk: Literal["policy", "own"], tiny_llama: Path
) -> None:
    trainer = trainer_on(tiny_llama, PpoConfig(lr=3e-3, value_coef=1.0, value_trunk=trunk))
    groups = batch()
    explained, losses = [], []
    for _ in range(30):
        credit = trainer.algorithm.credit(groups, compute_values(trainer, groups, trainer.algorithm.critic_config, 64))
        metrics = trainer.step(pack(groups, credit, 64))
        explained.append(credit.metrics["critic/explained_variance"])
        losses.append(metrics["critic/loss"])
    assert explained[0] == pytest.approx(0.0, abs=1e-6), "a critic begins as a constant"
    assert explained[-1] > 0.7
    assert losses[-1] < losses[0] / 3


@pytest.mark.parametrize("normalize", ["rollout", "token"])
def test_a_critic_begins_at_the_mean_return_of_its_first_batch_and_only_of_that(
    normalize: Literal["rollout", "token"], tiny_llama: Path
) -> None:
    """By the loss's own weights, whatever `gae_lambda` makes of the targets: its first values need no offset."""
    algo = PpoConfig(gamma=0.9, gae_lambda=0.5, normalize=normalize)
    trainer = trainer_on(tiny_llama, algo)
    sessions = [
        linear_session("short", [8, 9], [[12, 13]], reward=1.0),
        linear_session("long", [8, 10], [[14, 15, 16], [17, 18, 19]], reward=-3.0),
    ]
    values = compute_values(trainer, [as_group(sessions)], algo, 64)
    plain = Ppo(algo.model_copy(update={"gae_lambda": 1.0})).credit([as_group(sessions)], values)
    told = {value for key, node in values.items() for value, r in zip(node, returned(plain, key), strict=True) if r}
    assert len(told) == 1, "the same everywhere"
    assert told.pop() == pytest.approx(plain.metrics["critic/return_mean"])
    begun = float(critic_of(trainer).head.bias.detach())
    compute_values(trainer, batch(), algo, 64)
    assert float(critic_of(trainer).head.bias.detach()) == begun
    trainer.begin(algo, 1)
    compute_values(trainer, batch(), algo, 64)
    assert float(critic_of(trainer).head.bias.detach()) != begun, "a new phase begins anew"


def returned(credit: Credit, key: NodeKey) -> Sequence[float]:
    returns = credit.shares[key][0].returns
    assert returns is not None
    return returns


def seen(view: Sequence[float], name: str = "g") -> list[Group]:
    """A group whose sessions have the same tokens; each is worth what the critic sees before its turn."""
    sessions = [linear_session(f"{name}{i}", [8, 9], [[12, 13]], reward=number) for i, number in enumerate(view)]
    for session, number in zip(sessions, view, strict=True):
        session.nodes[1].attachments = {critic_view.NAME: critic_view.pack([number])}
    return [as_group(sessions, name)]


@pytest.mark.slow
def test_a_critic_that_sees_what_agents_do_not_explains_what_their_tokens_can_not(tiny_llama: Path) -> None:
    """MAPPO's centralised critic (arXiv:2103.01955): advantages come to the chance that is left, here none."""
    left = {}
    for numbers in (0, 1):
        trainer, groups = (
            trainer_on(tiny_llama, PpoConfig(value_view=numbers), total_steps=5),
            seen([0.0, 1.0, 0.0, 1.0]),
        )
        for _ in range(5):
            values = compute_values(trainer, groups, trainer.algorithm.critic_config, 64)
            _, forests = pack_credited(trainer.algorithm, groups, values, 64, seed=0)
            assert all((forest.critic_view is not None) == bool(numbers) for forest in forests)
            trainer.step(forests)
        values = compute_values(trainer, groups, trainer.algorithm.critic_config, 64)
        errors = [values[s.id, 1][-1] - (s.reward or 0.0) for s in groups[0].sessions]
        left[numbers] = sum(error**2 for error in errors) / len(errors)
    assert left[0] > 0.2  # 0.25 is the variance
    assert left[1] < 0.05


def test_what_the_critic_sees_keeps_equal_tokens_apart_and_nothing_else_does(tiny_llama: Path) -> None:
    groups = seen([0.0, 1.0, 1.0])
    credit = Credit({(s.id, 1): (NodeAdvantage(1.0, 1.0),) for s in groups[0].sessions})
    (plain,), (apart,) = pack(groups, credit, 64), pack(groups, credit, 64, view=1)
    assert (plain.trained, apart.trained) == (2, 4)
    assert sorted(apart.rows().critic_view[:, 0].tolist()) == [0.0, 0.0, 1.0, 1.0]  # type: ignore[index]
    apart.padded(64).check()
    with pytest.raises(InvalidInput, match=r"algo.value_view = 2: the environment's critic_view gave 1 numbers"):
        pack(groups, credit, 64, view=2)


def test_a_checkpoint_of_a_critic_that_saw_more_is_refused_with_what_to_do(tiny_llama: Path, tmp_path: Path) -> None:
    trainer_on(tiny_llama, PpoConfig(value_view=2)).save(tmp_path / "saved")
    with pytest.raises(ConfigError, match=r"algo.value_view=0: the checkpoint's critic has 2; resume with that"):
        trainer_on(tiny_llama).load(tmp_path / "saved")


@pytest.mark.slow
def test_rates_of_its_own_move_the_critic_and_not_the_policy(tiny_llama: Path) -> None:
    """The first step of Adam is as long as its rate, whatever the gradient."""
    found = []
    for rate, own in ((1.0, None), (1e-2, None), (1e-2, 1e-3)):
        algo = PpoConfig(lr=1e-2, value_lr=rate, value_trunk="own", value_trunk_lr=own, value_epochs=1, value_coef=0.0)
        trainer = trainer_on(tiny_llama, algo)
        before = {name: tensor.clone() for name, tensor in trunk_of(trainer.model).state_dict().items()}
        forests = forests_of(trainer, batch())
        critic_of(trainer).head.weight.data.fill_(1e-3)  # a row of zeros would leave the trunk without a gradient
        trainer.step(forests)
        trunk = critic_of(trainer).trunk
        assert trunk is not None
        moved = max(float((tensor - before[name]).abs().max()) for name, tensor in trunk.state_dict().items())
        found.append((parameters(trainer), float((critic_of(trainer).head.weight.detach() - 1e-3).abs().max()), moved))
    assert same(found[0][0], found[1][0])
    assert same(found[0][0], found[2][0])
    assert [row for _, row, _ in found] == pytest.approx([1.0, 1e-2, 1e-2], rel=1e-3)
    assert [moved for _, _, moved in found] == pytest.approx([1e-2, 1e-2, 1e-3], rel=1e-2)


@pytest.mark.parametrize(("warmup", "moved"), [(None, 1e-3), (0, 1e-2)])
def test_the_critics_rates_rise_over_steps_of_their_own(warmup: int | None, moved: float, tiny_llama: Path) -> None:
    algo = PpoConfig(warmup_steps=9, value_lr=1e-2, value_lr_warmup=warmup, value_epochs=1, value_coef=0.0)
    trainer = trainer_on(tiny_llama, algo, total_steps=20)
    trainer.step(forests_of(trainer, batch()))
    assert float(critic_of(trainer).head.weight.detach().abs().max()) == pytest.approx(moved, rel=1e-2)


@pytest.mark.slow
def test_more_updates_of_the_critic_change_nothing_else(tiny_llama: Path) -> None:
    """The policy's own gradients, norm and clipping know nothing of how the critic is updated."""
    found = []
    for epochs in (1, 5):
        trainer = trainer_on(tiny_llama, PpoConfig(lr=1e-2, value_epochs=epochs, max_grad_norm=1e-3))
        metrics = trainer.step(forests_of(trainer, batch()))
        found.append((parameters(trainer), metrics["grad_norm"], critic_of(trainer).head.weight.detach()))
    assert same(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    assert not torch.equal(found[0][2], found[1][2])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trunk", "coef", "shaped"), [("policy", 0.5, True), ("policy", 0.0, False), ("own", 0.5, False)]
)
def test_the_critics_loss_shapes_the_policys_trunk_only_where_it_reads_it_and_is_weighed(
    trunk: Literal["policy", "own"], coef: float, shaped: bool, tiny_llama: Path
) -> None:
    def gradient(row: bool) -> Tensor:
        trainer = trainer_on(tiny_llama, PpoConfig(value_trunk=trunk, value_coef=coef))
        forests = forests_of(trainer, batch())
        if row:
            awake(trainer)
        for forest in forests:
            trainer.backward(trainer.prepare(forest))
        return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])

    assert torch.equal(gradient(row=True), gradient(row=False)) != shaped


@pytest.mark.slow
def test_a_checkpoint_of_a_critic_on_another_trunk_is_refused_with_what_to_do(tiny_llama: Path, tmp_path: Path) -> None:
    trainer_on(tiny_llama, PpoConfig(value_trunk="own")).save(tmp_path / "state")
    with pytest.raises(ConfigError, match=r"algo.value_trunk=policy: .* value_trunk=own"):
        trainer_on(tiny_llama).load(tmp_path / "state")


@pytest.mark.slow
def test_engines_and_folders_never_see_the_critic(tiny_llama: Path, tmp_path: Path) -> None:
    with_critic, without = trainer_on(tiny_llama), trainer_on(tiny_llama, AlgoConfig())
    assert [name for name, _ in with_critic.weights()] == [name for name, _ in without.weights()]
    with_critic.export(tmp_path / "model")
    assert trainer_on(tmp_path / "model", AlgoConfig()).model.state_dict().keys() == without.model.state_dict().keys()
    with pytest.raises(InvalidInput, match="grpo"):
        without.values([])


class Plugin:
    """A trainer that has no critic, from an import path."""

    version = 0
    threads = None
    deterministic = False

    def __init__(self, *_: object, **__: object) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True

    begin = step = logprobs = weights = save = load = export = close


def test_a_trainer_without_a_critic_refuses_an_algorithm_that_needs_one_by_name(tiny_llama: Path) -> None:
    plugin = TrainerConfig(name=f"{__name__}:Plugin")
    assert isinstance(make_trainer(tiny_llama, plugin, AlgoConfig()), Trainer)
    with pytest.raises(ConfigError, match=r"algo=ppo needs a critic, which trainer=.*Plugin does not have"):
        make_trainer(tiny_llama, plugin, PpoConfig())
    assert isinstance(make_trainer(tiny_llama, CPU, PpoConfig()), Critic)


def test_an_algorithm_that_needs_a_critic_and_gives_it_nothing_to_learn_from_is_an_error(tiny_llama: Path) -> None:
    trainer = trainer_on(tiny_llama)
    groups = batch()
    credit = Grpo().credit(groups)
    with pytest.raises(InvalidInput, match="returns"):
        trainer.step(pack(groups, credit, 64))


@pytest.mark.slow
def test_while_a_critic_warms_up_it_learns_alone_and_a_resumed_phase_goes_on_with_it(
    tiny_llama: Path, tmp_path: Path
) -> None:
    algo = ALGO.model_copy(update={"value_warmup": 2, "kl_coef": 0.1})
    trainer, resumed = trainer_on(tiny_llama, algo), trainer_on(tiny_llama, algo)
    begun = parameters(trainer)
    for step in range(2):
        before = critic_of(trainer).head.weight.clone()
        assert trainer.step(forests_of(trainer, batch(step)))["critic/loss"] > 0
        assert not torch.equal(critic_of(trainer).head.weight, before)
        assert same(parameters(trainer), begun)
        if not step:
            trainer.save(tmp_path / "trainer")
    resumed.load(tmp_path / "trainer")
    resumed.step(forests_of(resumed, batch(1)))
    for each in (trainer, resumed):
        each.step(forests_of(each, batch(2)))
    assert not same(parameters(trainer), begun)
    assert same(parameters(trainer), parameters(resumed))
