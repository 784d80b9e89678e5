"""What an agent of a Gymnasium environment may do now and is told of `info`, and good actions by a table."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import agentrl
from agentrl.envs import calls
from agentrl.envs.adapters.planning import best_actions
from agentrl.envs.episode import DEMONSTRATOR, play
from agentrl.envs.registry import factory
from agentrl.errors import ConfigError, EnvError
from agentrl.types import Status


class Masked(gymnasium.Env[Any, Any]):
    """Each part of an action may be taken once; the mask is in `info`, in the observation, or a method's."""

    def __init__(self, parts: int, where: str) -> None:
        self.where, self.parts = where, parts
        self.action_space = spaces.Discrete(3, start=5) if parts == 1 else spaces.MultiDiscrete([3] * parts)
        own = {"action_mask": spaces.MultiBinary(3 * parts)} if where == "observation" else {}
        self.observation_space = spaces.Dict({"steps": spaces.Discrete(9), **own})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.free = np.ones((self.parts, 3), np.int8)
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        for part, value in enumerate(np.ravel(action) - (5 if self.parts == 1 else 0)):
            assert self.free[part][value], "a masked action reached the environment"
            self.free[part][value] = 0
        return *self._seen()[:1], 1.0, not self.free.any(), False, self._seen()[1]

    def valid(self) -> Any:
        return self.free.ravel()

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        mask = tuple(self.free) if self.parts > 1 else self.free[0]
        own = {"action_mask": self.free.ravel()} if self.where == "observation" else {}
        told = {"action_mask": mask} if self.where == "info" else {}
        return {"steps": int(3 - self.free[0].sum()), **own}, {
            **told,
            "left": self.free.sum() / 3,
            "why": "so",
            "deep": {"a": (1, None)},
        }


gymnasium.register("Masked-v0", Masked)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    ("where", "name"), [("info", "action_mask"), ("observation", "action_mask"), ("method", "valid")]
)
async def test_a_masked_action_is_refused_told_and_never_demonstrated(parts: int, where: str, name: str) -> None:
    make = factory("gymnasium:Masked-v0", parts=parts, where=where, mask=name, idle_reward=-1.0)
    for task in itertools.islice(calls.tasks(make()), 20):
        session = await play(make(), task, DEMONSTRATOR)
        assert (session.status, session.score, session.turns) == (Status.COMPLETED, 3.0, 3)
    env = make()
    opening = await calls.reset(env, next(calls.tasks(env)))
    assert opening[0].text.endswith("Allowed now: 5, 6, 7." if parts == 1 else "Allowed now: 0, 1, 2; 0, 1, 2.")
    act = env.call("act", action=6 if parts == 1 else [1, 2])
    told = await calls.step(env, act)
    assert told.messages[0].text.endswith("Allowed now: 5, 7." if parts == 1 else "Allowed now: 0, 2; 0, 1.")
    refused = await calls.step(env, act)
    assert "allowed now: 5, 7" in refused.messages[0].text or "allowed now: 0, 2; 0, 1" in refused.messages[0].text
    assert refused.reward == -1.0


async def test_an_agent_is_told_of_info_what_a_setting_names() -> None:
    options = {"parts": 1, "where": "info", "mask": "action_mask", "digits": 2}
    env = agentrl.make("gymnasium:Masked-v0", info=["left", "why", "deep", "absent"], **options)
    await calls.reset(env, next(calls.tasks(env)))
    told = (await calls.step(env, env.call("act", action=5))).messages[0].text
    assert told == 'steps: 1\nleft: 0.67\nwhy: so\ndeep: {"a": [1, null]}\nAllowed now: 6, 7.'
    named = agentrl.make("gymnasium:FrozenLake-v1", info=["prob"], observe="ansi")
    assert (await calls.reset(named, next(calls.tasks(named))))[0].text.endswith("\nprob: 1")
    taxi = agentrl.make(
        "gymnasium:Taxi-v4", mask="action_mask", actions=["south", "north", "east", "west", "up", "down"]
    )
    session = await play(taxi, next(calls.tasks(taxi)), DEMONSTRATOR, max_turns=9)
    assert "Allowed now: " in session.nodes[0].message.text


async def test_a_mask_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"env\.mask=action_mask: actions are Box"):
        agentrl.make("gymnasium:Pendulum-v1", mask="action_mask")
    env = agentrl.make("gymnasium:CartPole-v1", mask="allowed")
    with pytest.raises(EnvError, match=r"env\.mask=allowed: no key of info \(none\)"):
        await calls.reset(env, next(calls.tasks(env)))


@pytest.mark.parametrize("name", ["FrozenLake-v1", "CliffWalking-v1", "Taxi-v4"])
def test_a_table_of_transitions_is_solved_for_demonstrations(name: str) -> None:
    slippery = {"is_slippery": False} if name == "FrozenLake-v1" else {}
    env = gymnasium.make(name, **slippery)
    plan = best_actions(env.unwrapped.P)  # type: ignore[attr-defined]
    for seed in range(10):
        observation, _ = env.reset(seed=seed)
        terminated = truncated = False
        while not (terminated or truncated):
            observation, reward, terminated, truncated, _ = env.step(plan[int(observation)])
        assert terminated
        assert float(reward) == {"FrozenLake-v1": 1.0, "CliffWalking-v1": -1.0, "Taxi-v4": 20.0}[name]
    env.close()
