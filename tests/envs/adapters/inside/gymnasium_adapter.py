"""Gymnasium's environments as agentrl's, and agentrl's as Gymnasium's, with the real library."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import jsonschema
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env as check_gymnasium
from hypothesis import given, settings
from hypothesis import strategies as st

import agentrl
from agentrl.envs import calls
from agentrl.envs.adapters import spaces as ours
from agentrl.envs.adapters.as_gymnasium import AsGymnasium
from agentrl.envs.episode import DEMONSTRATOR, play
from agentrl.envs.registry import factory
from agentrl.envs.state import EnvState
from agentrl.errors import ConfigError, InfraError, InvalidInput, StateUnsupported, ToolArguments
from agentrl.types import Message, Session, Status


class Mixed(gymnasium.Env[dict[str, Any], dict[str, Any]]):
    """A Dict of everything, both ways; ends by truncation after five steps."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "word": spaces.Text(5, charset="abc"),
                "point": spaces.Box(-1, 1, (2,), np.float64),
                "dice": spaces.MultiDiscrete([6, 6], start=[1, 1]),
                "bits": spaces.MultiBinary(3),
                "pair": spaces.Tuple((spaces.Discrete(3), spaces.Text(4, charset="xy"))),
            }
        )
        self.action_space = spaces.Dict(
            {"force": spaces.Box(-2, 2, (), np.float32), "move": spaces.MultiDiscrete([3, 2]), "say": spaces.Text(9)}
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: dict[str, Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.steps += 1
        reward = float(action["force"]) + int(action["move"].sum()) + len(action["say"])
        return self.observation_space.sample(), reward, False, self.steps == 5, {}


gymnasium.register("Mixed-v0", Mixed, max_episode_steps=9)


class Slow(Mixed):
    """A step that begins at `begun` and goes on until it `may_end`."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may_end, self.closed = threading.Event(), threading.Event(), threading.Event()
        self.stepping = False

    def step(self, action: dict[str, Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.stepping = True
        self.begun.set()
        self.may_end.wait(60)
        self.stepping = False
        return super().step(action)

    def close(self) -> None:
        assert not self.stepping
        self.closed.set()


gymnasium.register("Slow-v0", Slow, max_episode_steps=9)
TURNS = 12
IDS = {
    "FrozenLake-v1": {"form": "text"},
    "Taxi-v4": {"observe": "ansi"},
    "CliffWalking-v1": {"actions": ["up", "right", "down", "left"]},
    "Blackjack-v1": {},
    "CartPole-v1": {},
    "Pendulum-v1": {"form": "text"},
    "Mixed-v0": {},
}


def decoded(message: Message) -> Any:
    if not message.tool_calls:
        return message.text if message.text[:1].isalpha() else json.loads(message.text)
    arguments = json.loads(message.tool_calls[0].function.arguments)
    return arguments.get("action", arguments)


def element(space: spaces.Space[Any], value: Any) -> Any:
    """Decoded JSON as Gymnasium's own `from_jsonable` reads it."""
    return value if isinstance(space, spaces.Discrete) else space.from_jsonable(columns(space, value))[0]


def columns(space: spaces.Space[Any], value: Any) -> Any:
    """One value as the batch of one that `from_jsonable` takes."""
    if isinstance(space, spaces.Dict):
        return {name: columns(part, value[name]) for name, part in space.spaces.items()}
    return [value]


@pytest.mark.parametrize("name", IDS)
async def test_episodes_are_those_of_gymnasium_driven_directly(name: str) -> None:
    """In reward, end and observation."""
    options = IDS[name]
    ansi = options.get("observe") == "ansi"
    direct = gymnasium.make(name, **({"render_mode": "ansi"} if ansi else {}))

    def seen(observation: Any) -> str:
        text = re.sub(r"\x1b\[[0-9;]*m", "", str(direct.render())) if ansi else ours.text(observations, observation)
        return text.strip("\n")

    observations = direct.observation_space
    make = factory(f"gymnasium:{name}", **options)
    for task in itertools.islice(calls.tasks(make()), 25):
        session = await play(make(), task, DEMONSTRATOR, max_turns=TURNS)
        observation, _ = direct.reset(seed=task["seed"])
        assert session.nodes[0].message.text.endswith("\n" + seen(observation))
        for node in (node for node in session.nodes if node.message.role == "assistant"):
            action = decoded(node.message)
            named = options["actions"].index(action) if "actions" in options else element(direct.action_space, action)
            observation, reward, terminated, truncated, _ = direct.step(named)
            assert node.reward == pytest.approx(float(reward))
            told = [other.message.text for other in session.nodes if other.parent == node.id]
            assert told == [seen(observation)]
        ended = Status.COMPLETED if terminated else Status.TRUNCATED
        assert session.status is ended
        assert terminated or truncated or session.turns == TURNS
    direct.close()


async def test_what_is_no_action_is_answered_with_what_is_allowed_and_changes_nothing() -> None:
    env = agentrl.make("gymnasium:CartPole-v1", idle_reward=-1.0)
    task = next(calls.tasks(env))
    await calls.reset(env, task)
    for arguments in (
        {"action": 2},
        {"action": "left"},
        {"action": True},
        {},
        {"action": 0, "more": 1},
        {"action": [0]},
    ):
        result = await calls.step(env, env.call("act", **arguments))
        assert result.messages[0].text.startswith("Error: ")
        assert "a whole number from 0 to 1" in result.messages[0].text
        assert result.reward == -1.0
    plain = agentrl.make("gymnasium:CartPole-v1", form="text")
    await calls.reset(plain, task)
    for text in ("left", "[" * 5000):
        result = await calls.step(plain, Message(role="assistant", content=text))
        assert result.messages[0].text.startswith("Error: ")
    silent = await calls.step(env, Message(role="assistant", content="left"))
    assert (silent.reward, silent.terminated, silent.truncated) == (-1.0, False, False)
    right = await calls.step(env, env.call("act", action=1))
    twin = gymnasium.make("CartPole-v1")
    twin.reset(seed=task["seed"])
    assert json.loads(right.messages[0].text) == pytest.approx(twin.step(1)[0].tolist(), rel=1e-3)
    assert right.reward == 1.0
    await calls.close(env)


async def test_an_episode_is_saved_in_the_middle_and_goes_on_the_same() -> None:
    env = agentrl.make("gymnasium:FrozenLake-v1")
    await calls.reset(env, next(calls.tasks(env)))
    for action in (0, 1, 0):
        await calls.step(env, env.call("act", action=action))
    stored = (await calls.state(env)).to_bytes()
    other = agentrl.make("gymnasium:FrozenLake-v1")
    await calls.restore(other, EnvState.from_bytes(stored))
    for action in (1, 2, 2):
        one, two = [await calls.step(each, each.call("act", action=action)) for each in (env, other)]
        assert one == two


def test_an_adapted_environment_keeps_the_contract() -> None:
    assert agentrl.check_env("gymnasium:Mixed-v0", tasks=2, scored=8) == []


def test_wrong_ids_and_options_are_named() -> None:
    for options, words in (
        ({"source": "CartPool-v1"}, "CartPool"),
        ({"source": "no_such_module:Thing-v0"}, "no_such_module"),
        ({"source": "CartPole-v1", "gravty": 3}, "gravty"),
        ({"source": "CartPole-v1", "actions": ["left"]}, r"env\.actions=\['left'\]"),
        ({"source": "Pendulum-v1", "actions": ["left"]}, "a name for each action of a Discrete space"),
        ({"source": "CartPole-v1", "observe": "ansi"}, "and not ansi"),
    ):
        with pytest.raises(ConfigError, match=words):
            agentrl.make("gymnasium", **options)


class Picture(gymnasium.Env[Any, int]):
    observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.full((64, 64, 3), 7, np.uint8), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.full((64, 64, 3), action, np.uint8), 0.5, True, False, {}


gymnasium.register("Picture-v0", Picture)


async def test_a_picture_is_refused_without_a_renderer_and_written_by_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="12288 numbers, too many"):
        agentrl.make("gymnasium:Picture-v0")
    (tmp_path / "mean.py").write_text("def mean(observation, env):\n    return f'mean {observation.mean():g}'\n")
    env = agentrl.make("gymnasium:Picture-v0", renderer=f"{tmp_path}/mean.py:mean", prompt="Look.")
    assert (await calls.reset(env, next(calls.tasks(env))))[0].text == "Look.\nmean 7"
    assert (await calls.step(env, env.call("act", action=1))).messages[0].text == "mean 1"


NUMBERS = st.integers(1, 3)
LEAVES = st.one_of(
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-5, 5)),
    st.builds(lambda shape: spaces.Box(-3, 3, tuple(shape), np.float64), st.lists(NUMBERS, max_size=2)),
    st.builds(lambda shape: spaces.Box(-3, 300, tuple(shape), np.int32), st.lists(NUMBERS, max_size=2)),
    st.builds(lambda nvec: spaces.MultiDiscrete(nvec), st.lists(st.integers(1, 5), min_size=1, max_size=3)),
    st.builds(spaces.MultiBinary, NUMBERS),
    st.builds(lambda most: spaces.Text(most), st.integers(1, 9)),
)
SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: spaces.Tuple(parts)),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(lambda parts: spaces.Dict(parts)),
    ),
    max_leaves=4,
)


@settings(max_examples=40, deadline=None)
@given(SPACES, st.integers(0, 99))
def test_what_is_written_of_an_element_fits_the_schema_and_is_read_as_the_element(space: Any, seed: int) -> None:
    space.seed(seed)
    sample = space.sample()
    written = json.loads(json.dumps(ours.plain(space, sample)))
    jsonschema.validate(written, ours.schema(space))
    again = ours.read(space, written)
    assert space.contains(again)
    assert ours.plain(space, again) == written
    assert ours.describe_space(space)
    assert ours.text(space, sample)


@settings(max_examples=40, deadline=None)
@given(SPACES, st.recursive(st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text()), st.lists))
def test_whatever_is_read_is_an_element_or_refused(space: Any, value: Any) -> None:
    with contextlib.suppress(ToolArguments):
        assert space.contains(ours.read(space, value))


# ---------------------------------------------------------------------- the other way round


@pytest.fixture
def made() -> Iterator[Callable[..., AsGymnasium]]:
    every: list[AsGymnasium] = []

    def make(*args: Any, **options: Any) -> AsGymnasium:
        every.append(AsGymnasium(*args, **options))
        return every[-1]

    yield make
    for env in every:
        env.close()


@pytest.mark.parametrize("name", ["calculator", "castle", "gymnasium:FrozenLake-v1"])
def test_an_agentrl_environment_passes_gymnasiums_own_checker(name: str, made: Callable[..., AsGymnasium]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*Not able to test alternative render modes.*")
        check_gymnasium(made(name))


def expert(session: Session) -> list[str]:
    """The actions of a session: text, or tool calls as JSON."""
    found = []
    for node in session.nodes:
        if node.message.role == "assistant":
            wanted = [call.function for call in node.message.tool_calls or ()]
            made = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in wanted]
            found.append(json.dumps(made) if made else node.message.text)
    return found


@pytest.mark.parametrize("name", ["calculator", "castle"])
def test_the_experts_episodes_have_the_same_messages_and_rewards(name: str, made: Callable[..., AsGymnasium]) -> None:
    env = made(name)
    make = factory(name)
    for task in itertools.islice(calls.tasks(make()), 50 if name == "calculator" else 3):
        session = asyncio.run(play(make(), task))
        observation, info = env.reset(seed=1, options={"task": task.id})
        assert info["tools"] == env.tools
        seen, total, over = [observation], 0.0, False
        for action in expert(session):
            assert not over
            observation, reward, terminated, truncated, info = env.step(action)
            seen, total, over = [*seen, observation], total + reward, terminated or truncated
        assert over
        assert terminated
        assert total == pytest.approx(session.score)
        said = [node.message.text for node in session.nodes if node.message.role != "assistant"]
        assert "\n".join(filter(None, seen)) == "\n".join(filter(None, said))
        with pytest.raises(InvalidInput, match="call reset first"):
            env.step("and then?")


def test_an_abandoned_episode_is_closed_and_the_turn_limit_truncates(made: Callable[..., AsGymnasium]) -> None:
    closed: list[bool] = []

    class Endless(agentrl.Env):
        def tasks(self, split: str = "train") -> Iterator[dict[str, Any]]:
            return ({"id": str(n)} for n in itertools.count())

        def reset(self, task: Any, *, seed: int | None = None) -> str:
            return f"{task.id} {random.Random(seed).random()}"

        def step(self, message: Message) -> agentrl.StepResult:
            return agentrl.StepResult([Message(role="user", content="on")], reward=0.25)

        def close(self) -> None:
            closed.append(True)

    env = made(Endless, max_turns=3)
    env.reset(seed=3)
    env.step("a")
    assert closed == []
    env.reset()
    assert closed == [True]
    steps = [env.step("a") for _ in range(3)]
    assert [step[1] for step in steps] == [0.25, 0.25, 0.25]
    assert [step[2:4] for step in steps] == [(False, False), (False, False), (False, True)]
    with pytest.raises(InvalidInput, match="no such task"):
        env.reset(options={"task": "x"})


def test_the_python_of_the_page_runs_as_it_is_printed() -> None:
    page = (Path(agentrl.__file__).parents[1] / "docs" / "adapters.md").read_text()
    (block,) = (found for found in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "AsGymnasium" in found)
    names: dict[str, Any] = {}
    exec(block, names)
    assert names["observation"].startswith("15")


async def test_an_environment_whose_step_was_cut_off_goes_to_no_other_episode() -> None:
    """It was reset for the next episode while a thread was still in its step."""
    env = agentrl.make("gymnasium:Slow-v0", quick=False)
    task = next(calls.tasks(env))
    await calls.reset(env, task)
    slow = env._env.unwrapped  # type: ignore[attr-defined]
    env.tools.timeout = 0.05
    act = env.demonstrate([], random.Random(0))
    assert isinstance(act, Message)
    told = await calls.step(env, act)
    assert "took longer than 0.05 s" in told.messages[0].text
    assert slow.begun.wait(60)
    with pytest.raises(InfraError, match="a deadline cut a call of the environment off"):
        await calls.step(env, act)
    with pytest.raises(StateUnsupported):
        await calls.state(env)
    await calls.close(env)
    other = agentrl.make("gymnasium:Slow-v0", quick=False)
    await calls.reset(other, task)
    assert other._env.unwrapped is not slow  # type: ignore[attr-defined]
    assert not slow.closed.is_set()
    slow.may_end.set()
    assert await asyncio.to_thread(slow.closed.wait, 60), "it is closed once its step has ended"
    other._env.unwrapped.may_end.set()  # type: ignore[attr-defined]
    other.tools.timeout = 60.0
    assert "Error" not in (await calls.step(other, act)).messages[0].text
    await calls.close(other)
