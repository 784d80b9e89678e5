"""The suites of `agentrl.plugins`: agentrl's own plug-ins and the examples keep them, and broken ones do not."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.models import tiny
from agentrl.plugins.algorithm import ALGORITHMS, PolicyGradient, check_algorithm
from agentrl.plugins.loss import LOSSES, PolicyLoss, check_loss
from agentrl.plugins.reward import InfraError, Reward, check_reward
from agentrl.plugins.sampler import SAMPLERS, Sampler, check_sampler
from agentrl.plugins.tracker import Tracker, check_tracker
from agentrl.plugins.trainer import TrainerPlugin, check_trainer
from agentrl.plugins.transport import check_transport
from agentrl.rollout.weights.transports import DiskTransport, InprocTransport
from examples.plugins.row_trainer import RowTrainer

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
ALGORITHM_NAMES = [*ALGORITHMS.known(), f"{EXAMPLES}/lite_ppo.py", f"{EXAMPLES}/slic.py:Slic"]


@pytest.mark.parametrize("name", [*LOSSES.known(), f"{EXAMPLES}/tempered.py"], ids=lambda name: Path(name).name)
def test_every_policy_loss_keeps_the_contract(name: str) -> None:
    assert check_loss(name) == []


@pytest.mark.parametrize("name", ALGORITHM_NAMES, ids=lambda name: Path(name).name)
@pytest.mark.slow
def test_every_algorithm_keeps_the_contract(name: str) -> None:
    assert check_algorithm(name) == []


@pytest.mark.parametrize("name", list(SAMPLERS.known()))
def test_every_sampler_keeps_the_contract(name: str) -> None:
    assert check_sampler(name) == []


@pytest.mark.slow
def test_tensorboard_keeps_the_contract_of_metrics_back_ends() -> None:
    assert check_tracker("tensorboard") == []


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return tiny.build(tmp_path_factory.mktemp("tiny") / "model", ["a b c d"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torch", f"{EXAMPLES}/row_trainer.py:TRAINER"], ids=["torch", "row_trainer.py"])
def test_a_trainer_keeps_the_contract(name: str, model: Path) -> None:
    assert check_trainer(name, model, device="cpu") == []


@pytest.mark.parametrize("made", [InprocTransport, None])
async def test_transports_keep_the_contract(made: Any, model: Path, tmp_path: Path) -> None:
    transport = made() if made else DiskTransport(model, tmp_path, 1 << 20)
    assert await check_transport(transport) == []


class Length(Reward):
    """How many messages a session has, as a share of ten."""

    def compute(self, session: Any) -> float:
        return min(len(session.nodes) / 10, 1.0)


async def test_a_reward_keeps_the_contract() -> None:
    assert await check_reward(Length) == []


class Squared(PolicyLoss):
    """No two channels of advantages can be added with it."""

    def __call__(self, tokens: Any) -> Any:
        return -tokens.logp * tokens.advantage**3


class Unlearned(PolicyLoss):
    """It has no gradient."""

    def __call__(self, tokens: Any) -> Any:
        return -tokens.logp.detach() * tokens.advantage + 0 * tokens.logp


class Everything(PolicyGradient):
    """It gives prompts credit, too, and forgets its state."""

    name = "everything"
    count = 0

    def credit(self, groups: Any, values: Any = None) -> Any:
        from agentrl.plugins.algorithm import Credit, NodeAdvantage

        self.count += 1
        nodes = [(session.id, node.id) for group in groups for session in group.sessions for node in session.nodes]
        return Credit({key: (NodeAdvantage(float(self.count), 1.0),) for key in nodes})


class Lottery(Sampler):
    """It neither follows its seed nor stays among the tasks."""

    def choose(self, number: int, count: int) -> int:
        return random.randrange(2 * count + 5)


class TooMuch(Reward):
    """Beyond its range, and it writes into sessions."""

    def compute(self, session: Any) -> float:
        session.nodes.clear()
        return 3.0


class Down(Reward):
    """A service that is not there."""

    async def compute(self, session: Any) -> float:
        raise InfraError("nobody answers")


class OnlyNumbers(Tracker):
    """It takes no step without a loss."""

    def __init__(self, about: Any) -> None:
        pass

    def log(self, step: int, numbers: Any) -> None:
        assert numbers["loss"] < 1

    def close(self) -> None:
        pass


class Half(InprocTransport):
    """It loses a tensor, and hides errors."""

    async def send(self, receivers: Any, commit: Any) -> Any:
        self._weights = list(self._weights)[:-1]
        return dict.fromkeys(await super().send(receivers, commit))


def checks(findings: list[Any]) -> set[str]:
    return {finding.check for finding in findings}


@pytest.mark.parametrize(
    ("check", "plugin", "found"),
    [
        (check_loss, Squared, {"two_channels_of_advantages_add_up"}),
        (check_loss, Unlearned, {"it_is_learned_from"}),
        (
            check_algorithm,
            Everything,
            {"weights_and_advantages_are_numbers_of_trained_nodes", "state_is_json_and_comes_back"},
        ),
        (check_sampler, Lottery, {"every_choice_is_a_task", "choices_follow_from_the_seed", "a_resumed_run_goes_on"}),
        (check_tracker, OnlyNumbers, {"it_takes_whatever_a_step_measures"}),
    ],
)
def test_a_broken_promise_is_found_and_only_that(check: Callable[..., Any], plugin: Any, found: set[str]) -> None:
    assert checks(check(plugin)) == found


async def test_rewards_and_transports_that_break_promises_are_found() -> None:
    assert checks(await check_reward(TooMuch)) >= {
        "every_session_gets_a_number_in_its_range",
        "sessions_stay_as_they_are",
    }
    assert checks(await check_reward(Down)) >= {"many_sessions_are_scored_at_once"}
    assert checks(await check_transport(Half())) >= {
        "every_engine_gets_all_weights",
        "an_engine_that_refuses_harms_no_other",
    }


@pytest.mark.slow
def test_a_trainer_that_forgets_its_optimizer_and_its_version_is_found(model: Path) -> None:
    class Forgetful(RowTrainer):
        def load(self, path: Path) -> None:
            self.model.load_state_dict(torch.load(path, weights_only=True)["model"])

    class Plugin(TrainerPlugin):
        def factory(self) -> Any:
            return Forgetful

    assert checks(check_trainer(Plugin(), model, device="cpu")) == {"a_checkpoint_goes_on_as_the_trainer_did"}
