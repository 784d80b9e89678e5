"""An episode is saved, restored in another instance and forked, and goes on there as it would have gone on here."""

from __future__ import annotations

from typing import Any

import pytest

import agentrl
from agentrl.envs import calls
from agentrl.envs.base import Env, has_fork, has_state
from agentrl.envs.builtin.calculator import Calculator
from agentrl.envs.builtin.castle import Castle
from agentrl.envs.registry import make
from agentrl.envs.state import EnvState
from agentrl.envs.wrappers import TimeLimit, TokenBudget, Transcript, TurnLimit
from agentrl.errors import EnvError, InvalidInput, StateUnsupported
from agentrl.tools.tool import tool
from agentrl.types import FunctionCall, Message, Task, ToolCall


class Counter(Env):
    """Counts, and needs an argument to be made."""

    def __init__(self, start: int) -> None:
        self.start, self.seen = start, list[int]()

    def tasks(self, split: str = "train") -> Any:
        return [{"n": 1}]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        return "Count."

    @tool(quick=True)
    def count(self) -> int:
        """Count on."""
        self.seen.append(self.start + len(self.seen))
        return self.seen[-1]

    async def state(self) -> Any:
        return {"seen": self.seen}

    async def restore(self, task: Task, state: Any) -> None:
        self.seen = state["seen"]


def count() -> Message:
    call = ToolCall(id="c", function=FunctionCall(name="count"))
    return Message(role="assistant", tool_calls=[call])


async def begun(env: Env, steps: int = 2) -> Env:
    await calls.reset(env, next(calls.tasks(env)), seed=3)
    for _ in range(steps):
        await calls.step(env, count())
    return env


async def answers(env: Env, steps: int = 2) -> list[str]:
    return [(await calls.step(env, count())).messages[0].text for _ in range(steps)]


async def through_bytes(env: Env) -> EnvState:
    state = await calls.state(env)
    assert EnvState.from_bytes(state.to_bytes()) == state
    return EnvState.from_bytes(state.to_bytes())


async def test_a_restored_episode_goes_on_like_the_original() -> None:
    original = await begun(Counter(10))
    state = await through_bytes(original)
    assert await answers(original) == ["12", "13"]
    restored = Counter(10)
    await calls.restore(restored, state)
    assert await answers(restored) == ["12", "13"]
    assert restored.tools.calls == 4
    assert (await calls.state(restored)).seed == 3


async def test_forks_go_on_without_each_other_and_are_made_with_the_same_arguments() -> None:
    original = await begun(Counter(start=10))
    first, second = await calls.fork(original), await calls.fork(original)
    assert await answers(first, 3) == ["12", "13", "14"]
    assert await answers(original) == ["12", "13"]
    assert await answers(second) == ["12", "13"]
    assert await answers(await calls.fork(second)) == ["14", "15"]


async def test_wrappers_carry_what_they_have_counted() -> None:
    def wrapped() -> Env:
        return Transcript(TurnLimit(TokenBudget(TimeLimit(Counter(10), 1000), 10**6), 4))

    original = await begun(wrapped())
    state = await through_bytes(original)
    assert state.env == "Transcript(TurnLimit(TokenBudget(TimeLimit(Counter))))"
    restored = wrapped()
    await calls.restore(restored, state)
    forked = await calls.fork(restored)
    for env in (original, restored, forked):
        assert (await calls.step(env, count())).truncated is False
        assert (await calls.step(env, count())).truncated is True
        assert isinstance(env, Transcript)
        assert [message.text for message in env.messages if message.role == "tool"] == ["10", "11", "12", "13"]
    assert restored.env.env.used == forked.env.env.used == original.env.env.used  # type: ignore[attr-defined]


async def test_an_environment_without_a_state_says_so() -> None:
    class Plain(Counter):
        state, restore = Env.state, Env.restore  # type: ignore[assignment]

    env = await begun(Plain(1))
    assert not has_state(env)
    assert not has_fork(TurnLimit(env, 3))
    for call in (calls.state, calls.fork):
        with pytest.raises(StateUnsupported, match=r"Plain has no state\(\)"):
            await call(env)
    assert has_state(TurnLimit(Counter(1), 3))
    assert has_fork(Counter)


async def test_a_state_fits_its_environment_version_and_a_new_instance_only() -> None:
    class Newer(Counter):
        version = "2"

    Newer.__name__ = "Counter"
    state = await through_bytes(await begun(Counter(1)))
    with pytest.raises(InvalidInput, match="environment 'Counter' can't be restored in environment 'Calculator'"):
        await calls.restore(Calculator(), state)
    with pytest.raises(InvalidInput, match="version '1' can't be restored in version '2'"):
        await calls.restore(Newer(1), state)
    with pytest.raises(InvalidInput, match="new instance"):
        await calls.restore(await begun(Counter(1)), state)
    with pytest.raises(InvalidInput, match="not an environment's state"):
        EnvState.from_bytes(b"\x01")
    with pytest.raises(EnvError, match="begun no episode"):
        await calls.state(Counter(1))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({1, 2}, r"Counter.state gave \{1, 2\}: None, booleans"),
        ({"a": [1, object]}, r"at \['a'\]\[1\]"),
        ({1: 2}, "text keys"),
        (2**80, "numbers of 64 bits"),
    ],
)
async def test_what_can_not_be_stored_is_named_with_its_place(data: Any, words: str) -> None:
    env = await begun(Counter(1))
    env.state = lambda: data  # type: ignore[method-assign, assignment]
    with pytest.raises(EnvError, match=words):
        await calls.state(env)


async def test_a_state_does_not_change_with_the_episode_and_a_failed_restore_closes_the_fork() -> None:
    closed = []

    class Failing(Counter):
        def restore(self, task: Task, state: Any) -> Any:
            raise KeyError("seen")

        def close(self) -> None:
            closed.append(self)

    env = await begun(Counter(1))
    state = await calls.state(env)
    await answers(env)
    assert state.data == {"seen": [1, 2]}
    with pytest.raises(EnvError, match="raised KeyError"):
        await calls.fork(await begun(Failing(1)))
    assert len(closed) == 1


async def test_a_castle_is_restored_in_the_middle_with_doors_keys_and_rewards() -> None:
    env = Castle()
    task = next(calls.tasks(env, "eval"))
    said = await calls.reset(env, task)
    rewards, states = [], []
    while len(rewards) < 60:
        states.append(await through_bytes(env))
        result = await calls.step(env, await calls.expert(env, said))
        rewards.append(result.reward)
        if result.terminated:
            break
    for place in range(0, len(states), 7):
        other = Castle()
        await calls.restore(other, states[place])
        rest = []
        while len(rest) < len(rewards) - place:
            rest.append((await calls.step(other, await calls.expert(other, said))).reward)
        assert rest == rewards[place:]
    assert sum(reward or 0.0 for reward in rewards) == pytest.approx(1.0)


async def test_arguments_are_refused_where_a_class_takes_none() -> None:
    class Bare(agentrl.Env):
        pass

    with pytest.raises(TypeError, match=r"Bare\(\) takes no arguments"):
        Bare(3)  # type: ignore[call-arg]


async def test_the_interpreter_of_code_is_said_to_have_no_state() -> None:
    env = make("code", tools=True)
    await calls.reset(env, next(calls.tasks(env)))
    assert (await calls.state(env)).data is None
    env._toolkit._python = ("box", None)  # type: ignore[attr-defined]
    with pytest.raises(StateUnsupported, match="python tool"):
        await calls.state(env)


class Ordered(Counter):
    """Its state is a mapping whose order means something: the queue of who comes next."""

    def __init__(self) -> None:
        super().__init__(10)
        self.queue = {"zoe": 1, "ada": 2, "mia": {"b": 1, "a": 2}}

    async def state(self) -> Any:
        return {"seen": self.seen, "queue": self.queue}

    async def restore(self, task: Task, state: Any) -> None:
        self.seen, self.queue = state["seen"], state["queue"]


@pytest.mark.slow
async def test_mappings_of_a_state_and_of_its_task_keep_their_order() -> None:
    """They came back sorted by name."""
    original = await begun(Ordered())
    state = await through_bytes(original)
    state.task.data["order"] = {"z": 1, "a": 2}
    restored = Ordered()
    restored.queue = {}
    again = EnvState.from_bytes(state.to_bytes())
    await calls.restore(restored, again)
    assert list(restored.queue) == ["zoe", "ada", "mia"]
    assert list(restored.queue["mia"]) == ["b", "a"]  # type: ignore[call-overload]
    assert list(again.task.data["order"]) == ["z", "a"]
