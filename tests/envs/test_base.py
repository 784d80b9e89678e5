"""What an author writes, what a run reads, and whose fault a failure is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import agentrl
from agentrl.envs import calls
from agentrl.envs.base import Env, has_expert, reward_methods
from agentrl.envs.data import identity
from agentrl.envs.episode import noop_policy, play
from agentrl.errors import EnvError, InvalidInput, SandboxError, ToolError
from agentrl.types import FunctionCall, Message, Node, Session, Status, StepResult, Task, ToolCall


class Counter(Env):
    """Count to three."""

    def __init__(self) -> None:
        self.count = 0
        self.closed = 0

    def tasks(self, split: str = "train") -> list[dict[str, Any]]:
        return [{"goal": 3}, {"goal": 2, "id": "small"}]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        self.goal = task["goal"]
        return f"Count to {self.goal}"

    @agentrl.tool
    def up(self) -> int:
        """Count one up."""
        self.count += 1
        self.earn(0.1)
        if self.count == self.goal:
            self.end()
        return self.count

    @agentrl.tool
    async def fail(self) -> int:
        """Fail."""
        raise ToolError("no")

    @agentrl.reward
    def reached(self, session: Session) -> float:
        return float(self.count == self.goal)

    @agentrl.reward(weight=0.5, range=(-1, 0), name="hurry")
    async def haste(self, session: Session) -> float:
        return -len(session.nodes) / 100

    def expert(self, messages: Sequence[Message]) -> Message:
        return self.call("up")

    def close(self) -> None:
        self.closed += 1


def session_of(*messages: Message) -> Session:
    nodes = [Node(i, i - 1 if i else None, m, [], [], []) for i, m in enumerate(messages)]
    return Session(id="s", task=Task(id="t"), nodes=nodes)


def test_tools_are_found_in_the_order_written_and_inherited():
    class More(Counter):
        @agentrl.tool
        def down(self) -> None:
            """Count one down."""

    assert More().tools.names == ["up", "fail", "down"]


def test_an_overridden_tool_keeps_its_place_and_an_unmarked_override_takes_it_away():
    class Loud(Counter):
        @agentrl.tool(name="UP")
        def up(self) -> str:
            """Count loudly."""
            return "UP"

    class Silent(Counter):
        def up(self) -> int:
            return 0

    assert Loud().tools.names == ["UP", "fail"]
    assert Silent().tools.names == ["fail"]


def test_a_mark_that_a_class_has_lost_is_told_once(caplog: pytest.LogCaptureFixture):
    """A tool and a reward less were seen by nobody; None removes one on purpose."""

    def twice(function: Any) -> Any:
        return lambda *given: 2 * function(*given)

    class Rewarding(Counter):
        @agentrl.reward
        def won(self, session: Session) -> float:
            return 1.0

    class Losing(Rewarding):
        fail = None  # type: ignore[assignment]

        def up(self) -> int:
            return 0

        @twice
        @agentrl.reward
        def counted(self, session: Session) -> float:
            return 1.0

        @property
        def won(self) -> float:  # type: ignore[override]
            return 1.0

    for _ in range(2):
        assert Losing().tools.names == []
        assert not {"counted", "won"} & {mark.name for mark, _ in reward_methods(Losing())}
    told = [record.getMessage() for record in caplog.records]
    assert [words.partition(" ")[0] for words in told] == ["Losing.up", "Losing.counted:", "Losing.won"]


@pytest.mark.parametrize("mark", [agentrl.tool, agentrl.reward])
def test_a_marked_method_may_not_take_the_place_of_one_that_agentrl_calls(mark: Any):
    """A tool `end` ended nothing, a reward `expert` was the expert's next message."""

    class Odd(Counter):
        @mark
        def end(self, session: Any = None) -> float:  # type: ignore[override]
            """Hang up."""
            return 1.0

    with pytest.raises(InvalidInput, match=r"Odd\.end is marked @\w+ and takes the place of Env\.end"):
        _ = Odd().tools, reward_methods(Odd())


@pytest.mark.parametrize(
    ("name", "value"),
    [("stop_strings", "</a>"), ("agents", "red"), ("agents", ()), ("max_turns", 0), ("max_turns", "3"), ("tools", [])],
)
def test_an_attribute_that_would_be_read_as_another_is_refused(name: str, value: Any):
    """The letters of "</a>" ended turns, and episodes of 0 turns were all cut off."""
    with pytest.raises(EnvError, match=rf"Odd\.{name} is "):
        agentrl.make(type("Odd", (Counter,), {name: value}))


@pytest.mark.parametrize(("given", "words"), [("async", "is async"), (None, "returned None"), ({}, "returned {}")])
def test_tasks_that_are_no_list_are_refused(given: Any, words: str):
    async def later(self: Any, split: str = "train") -> list[Any]:
        return []

    odd = type("Odd", (Counter,), {"tasks": later if given == "async" else lambda self, split="train": given})()
    for read in (lambda: list(calls.tasks(odd)), lambda: identity.of_split(odd, "train")):
        with pytest.raises(EnvError, match=rf"Odd\.tasks.* {words}"):
            read()


async def test_static_and_class_methods_and_ones_without_a_self_are_marked_as_any_other():
    """A mark below `@staticmethod` was lost, one above it lost its name, and `this` was asked of the model."""

    class Odd(Counter):
        @staticmethod
        @agentrl.tool
        def low(n: int) -> int:
            """Low."""
            return n

        @agentrl.tool(name="HIGH")
        @staticmethod
        def high(n: int) -> int:
            """High."""
            return n

        @classmethod
        @agentrl.tool
        def whole(kind, n: int) -> int:
            """Whole."""
            return n

        @agentrl.tool
        def mine(this, n: int) -> int:
            """Mine."""
            return n

        @staticmethod
        @agentrl.reward
        def luck(session: Session) -> float:
            return 1.0

    env = Odd()
    assert env.tools.names == ["up", "fail", "low", "HIGH", "whole", "mine"]
    assert [list(tool.parameters["properties"]) for tool in env.tools][2:] == [["n"]] * 4
    assert [(await env.tools.run(env.call(name, n=3).tool_calls[0])).text for name in env.tools.names[2:]] == ["3"] * 4
    assert [mark.name for mark, _ in reward_methods(env)] == ["reached", "hurry", "luck"]
    with pytest.raises(InvalidInput, match=r"@reward on <property .*: a function is wanted"):
        agentrl.reward(property(lambda self: 1.0))  # type: ignore[type-var]


def test_instances_share_no_registry():
    one, other = Counter(), Counter()
    assert one.tools is one.tools
    assert one.tools is not other.tools


class Stepping(Counter):
    """Counts in `step`, without a call."""

    async def step(self, message: Message) -> agentrl.StepResult:
        self.earn(0.1)
        self.end()
        return agentrl.StepResult() if not message.tool_calls else await self.run_tools(message)


class GoingOn(Counter):
    """Ends later than its tool says."""

    async def step(self, message: Message) -> agentrl.StepResult:
        result = await self.run_tools(message)
        result.terminated = False
        return result


async def test_what_a_tool_ends_a_step_may_go_on_with():
    env = GoingOn()
    await calls.reset(env, Task(id="t", data={"goal": 1}))
    assert not (await calls.step(env, env.call("up"))).terminated


@pytest.mark.parametrize(("calls_up", "earned"), [(False, 0.1), (True, 0.2)])
async def test_what_a_step_of_ones_own_earns_and_ends_counts(calls_up: bool, earned: float):
    env = Stepping()
    env.earn(5.0)  # before the step
    await calls.reset(env, Task(id="t", data={"goal": 3}))
    env.earn(5.0)
    result = await calls.step(env, env.call("up") if calls_up else Message(role="assistant", content="one"))
    assert (result.reward, result.terminated) == (pytest.approx(earned), True)


async def test_a_played_episode_earns_step_and_final_rewards_and_ends_itself():
    env = Counter()
    session = await play(env, Task(id="t", data={"goal": 3}))
    assert session.status is Status.COMPLETED
    assert [n.reward for n in session.nodes if n.message.role == "assistant"] == [0.1, 0.1, 0.1]
    assert session.rewards == {"reached": 1.0, "hurry": -0.07}
    assert session.reward == pytest.approx(1 - 0.035)
    assert (session.turns, session.counters) == (3, {"tool_calls": 3, "tool_errors": 0})
    assert env.closed == 1


async def test_calls_after_the_one_that_ends_the_task_are_not_run():
    env = Counter()
    await calls.reset(env, Task(id="t", data={"goal": 2}))
    many = [ToolCall(id=str(i), function=FunctionCall(name="up")) for i in range(5)]
    result = await calls.step(env, Message(role="assistant", tool_calls=many))
    assert (env.count, result.terminated, len(result.messages)) == (2, True, 2)
    assert result.reward == pytest.approx(0.2)


async def test_a_message_without_calls_is_the_final_answer():
    result = await calls.step(Counter(), Message(role="assistant", content="done"))
    assert (result.terminated, result.truncated, result.reward, result.messages) == (True, False, None, [])


async def test_a_turn_limit_truncates_an_episode():
    class Patient(Counter):
        max_turns = 2

    session = await play(Patient(), Task(id="t", data={"goal": 3}))
    assert session.status is Status.TRUNCATED
    assert session.turns == 2


async def test_tool_failures_are_counted_in_the_session():
    session = await play(Counter(), Task(id="t", data={"goal": 3}), lambda env, said: env.call("fail"), max_turns=2)
    assert (session.turns, session.counters["tool_calls"], session.counters["tool_errors/refused"]) == (2, 2, 2)


async def test_tool_calls_that_are_answered_with_nothing_are_counted_in_the_session():
    class Mute(Counter):
        @agentrl.tool
        def note(self, text: str) -> str:
            """Repeat.

            Args:
                text: what.
            """
            return text

    texts = iter(["", "a", ""])
    said = lambda env, messages: env.call("note", text=next(texts))  # noqa: E731
    session = await play(Mute(), Task(id="t", data={"goal": 3}), said, max_turns=3)
    assert (session.counters["tool_calls"], session.counters["tool_errors"], session.counters["tool_silent"]) == (
        3,
        0,
        2,
    )


def test_tasks_get_ids_of_their_own():
    assert [task.id for task in calls.tasks(Counter())] == ["train-0", "small"]
    assert [task.id for task in calls.tasks(Counter(), "eval", 0)] == ["eval-0", "small"]
    assert [task.id for task in calls.tasks(Counter(), "train", 1)] == ["small"]


def test_an_unknown_split_is_named_with_the_nearest():
    with pytest.raises(EnvError, match=r"no split 'evals'; did you mean 'eval'\? \(splits: train, eval\)"):
        list(calls.tasks(Counter(), "evals"))


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("method", ["reset", "step", "close", "expert"])
async def test_whatever_an_environment_raises_names_its_class_and_method(method: str, asynchronous: bool):
    def broken(self: Env, *args: Any, **kwargs: Any) -> Any:
        raise KeyError("colour")

    async def broken_later(self: Env, *args: Any, **kwargs: Any) -> Any:
        raise KeyError("colour")

    env = type("Broken", (Counter,), {method: broken_later if asynchronous else broken})()
    arguments = {"reset": (Task(id="t"),), "step": (Message(role="assistant"),), "expert": ([],)}.get(method, ())
    with pytest.raises(EnvError, match=f"Broken.{method} raised KeyError: 'colour'") as caught:
        await getattr(calls, method)(env, *arguments)
    assert isinstance(caught.value.__cause__, KeyError)


async def test_our_own_failures_keep_their_name():
    class Unlucky(Counter):
        def reset(self, task: Task, *, seed: int | None = None) -> str:
            raise SandboxError("the daemon died")

    with pytest.raises(SandboxError):
        await calls.reset(Unlucky(), Task(id="t"))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "returned None"),
        ([], "no messages"),
        ([{"role": "robot"}], "role"),
        ([3], "not a message"),
        (3, "type int"),
    ],
)
async def test_an_opening_that_is_no_conversation_is_refused(value: Any, words: str):
    env = type("Odd", (Counter,), {"reset": lambda self, task, *, seed=None: value})()
    with pytest.raises(EnvError, match=words):
        await calls.reset(env, Task(id="t"))


async def test_an_agents_name_is_none_of_a_sub_agent():
    """Its turns were taken for a sub-agent's, so the session's answer was that of nobody."""
    env = type("Odd", (Counter,), {"agents": ("red/one",)})()
    with pytest.raises(EnvError, match=r"Odd\.agents has 'red/one': a name without a slash is wanted"):
        await calls.reset(env, next(calls.tasks(env)))


@pytest.mark.parametrize(
    "value", ["hello", ["hello"], {"role": "user", "content": "hello"}, [Message(role="user", content="hello")]]
)
async def test_an_opening_may_be_text_a_dict_or_messages(value: Any):
    env = type("Fine", (Counter,), {"reset": lambda self, task, *, seed=None: value})()
    assert await calls.reset(env, Task(id="t")) == [Message(role="user", content="hello")]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("text", "not a StepResult"),
        (StepResult(), "nothing to answer"),
        (StepResult(terminated=True, reward=float("nan")), "not a finite number"),
        (StepResult(terminated=True, reward="one"), "text and not a number"),  # type: ignore[arg-type]
        (StepResult(terminated="false"), "'false', a text; expected True or False"),  # type: ignore[arg-type]
        (StepResult(terminated=True, info=None), "info=None; expected a mapping"),  # type: ignore[arg-type]
        (StepResult(terminated=True, rewards={"agent": [1]}), "not a number"),  # type: ignore[dict-item]
    ],
)
async def test_a_step_that_leads_nowhere_is_refused(value: Any, words: str):
    env = type("Odd", (Counter,), {"step": lambda self, message: value})()
    with pytest.raises(EnvError, match=words):
        await calls.step(env, Message(role="assistant"))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "not a finite number"),
        (float("inf"), "not a finite number"),
        (1.5, "outside its range 0 to 1"),
        ("one", "text and not a number"),
        ([1], "not a number"),
    ],
)
async def test_a_reward_that_is_no_number_in_its_range_is_named(value: Any, words: str):
    env = type("Odd", (Env,), {"score": agentrl.reward(lambda self, session: value)})()
    with pytest.raises(EnvError, match=words) as caught:
        await calls.compute_rewards(env, session_of())
    assert "of Odd" in str(caught.value)


async def test_rewards_are_weighed_and_none_gives_none():
    class Mixed(Env):
        @agentrl.reward(weight=2)
        def one(self, session: Session) -> bool:
            return True

        @agentrl.reward(weight=-1, range=(0, 10))
        async def two(self, session: Session) -> int:
            return 5

        @agentrl.reward
        def absent(self, session: Session) -> None:
            return None

    rewards = await calls.compute_rewards(Mixed(), session_of())
    assert (rewards.values, rewards.total) == ({"one": 1.0, "two": 5.0}, -3.0)
    assert (await calls.compute_rewards(Env(), session_of())).total is None


def test_a_range_must_rise():
    with pytest.raises(InvalidInput, match="range must rise"):
        agentrl.reward(range=(1, 1))(lambda self, session: 1)


def test_marked_rewards_and_experts_are_found():
    assert [mark.name for mark, _ in reward_methods(Counter())] == ["reached", "hurry"]
    assert has_expert(Counter)
    assert not has_expert(Env)


async def test_the_sandbox_is_opened_once_and_closed_once():
    events: list[str] = []

    class Box:
        async def close(self) -> None:
            events.append("closed")

    class Boxed(Counter):
        @agentrl.tool(sandbox=True)
        def look(self, sandbox: Any) -> str:
            """Look."""
            return type(sandbox).__name__

        async def open_sandbox(self) -> Box:
            events.append("opened")
            return Box()

    env = Boxed()
    await calls.reset(env, Task(id="t", data={"goal": 3}))
    for _ in range(2):
        result = await calls.step(env, env.call("look"))
        assert result.messages[0].text == "Box"
    await calls.close(env)
    await calls.close(env)
    assert events == ["opened", "closed"]
    assert env.closed == 2


async def test_a_sandbox_tool_without_a_sandbox_is_the_authors_fault():
    class Boxless(Counter):
        @agentrl.tool(sandbox=True)
        def look(self, sandbox: Any) -> str:
            """Look."""
            return ""

    env = Boxless()
    with pytest.raises(EnvError, match=r"Boxless has sandbox tools and no open_sandbox"):
        await calls.step(env, env.call("look"))


async def test_an_environment_without_the_two_methods_says_which():
    with pytest.raises(EnvError, match="Env has no reset"):
        await calls.reset(Env(), Task(id="t"))
    with pytest.raises(EnvError, match="Env has no tasks"):
        list(calls.tasks(Env()))
    with pytest.raises(EnvError, match="Env has no expert"):
        await calls.expert(Env(), [])


async def test_an_expert_may_answer_in_plain_text_but_only_as_the_assistant():
    class Plain(Counter):
        def expert(self, messages: Sequence[Message]) -> Any:
            return "42" if messages else Message(role="user", content="42")

    assert await calls.expert(Plain(), [Message(role="user")]) == Message(role="assistant", content="42")
    with pytest.raises(EnvError, match="role 'user'"):
        await calls.expert(Plain(), [])


async def test_episodes_are_closed_even_when_they_fail():
    env = type("Broken", (Counter,), {"step": lambda self, message: 1 / 0})()
    with pytest.raises(EnvError):
        await play(env, Task(id="t", data={"goal": 3}), noop_policy)
    assert env.closed == 1


async def test_a_policy_that_fails_is_the_agents_error():
    def refuse(env: Env, messages: Sequence[Message]) -> Message:
        raise ToolError("I would rather not")

    session = await play(Counter(), Task(id="t", data={"goal": 3}), refuse)
    assert (session.status, session.error) == (Status.AGENT_ERROR, "I would rather not")


async def test_many_instances_run_side_by_side():
    goals = [2, 3, 4, 5] * 10
    sessions = await asyncio.gather(*(play(Counter(), Task(id=str(g), data={"goal": g})) for g in goals))
    assert [session.turns for session in sessions] == goals


@pytest.mark.slow
def test_a_subclass_has_tools_and_rewards_of_its_own_whichever_class_is_asked_first() -> None:
    class Base(Env):
        @agentrl.tool
        def look(self) -> str:
            """Look."""
            return "base"

        @agentrl.reward
        def first(self, session: Session) -> float:
            return 0.0

    class Sub(Base):
        look = None  # type: ignore[assignment]

        @agentrl.tool
        def go(self) -> str:
            """Go."""
            return "sub"

        @agentrl.reward(name="second")
        def first(self, session: Session) -> float:
            return 1.0

    for _ in range(2):  # what is found of a class is kept
        assert (Base().tools.names, Sub().tools.names) == (["look"], ["go"])
        assert [[mark.name for mark, _ in reward_methods(env)] for env in (Base(), Sub())] == [["first"], ["second"]]


async def test_what_an_episode_takes_out_of_its_task_the_next_one_has():
    """The sessions of a group had one object: `task.data.pop("answer")` in `reset` failed in the second of them."""

    class Popping(Env):
        def reset(self, task: Task, *, seed: int | None = None) -> str:
            self.words = task.data.pop("words")
            self.words.append("more")
            return " ".join(self.words)

        @agentrl.reward
        def said(self, session: Session) -> float:
            return float(session.task.data["words"] == ["one"])

    task = Task(id="a", data={"words": ["one"]})
    for _ in range(2):
        session = await play(Popping(), task, lambda env, messages: Message(role="assistant", content="x"))
        assert (session.messages[0].text, session.rewards) == ("one more", {"said": 1.0})
