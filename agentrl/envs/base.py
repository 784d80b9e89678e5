"""`Env`: the world an agent acts in, written by the author of a task.

An environment deals in messages only; it never sees tokens, engines or trainers. One instance serves one
episode at a time and is cheap to construct, so hundreds run side by side without sharing state: what is
costly to load belongs in the module (cached by its path), not in the instance.

Methods may be plain or `async`. Plain ones run on the event loop, so they should be quick; a tool is the
exception, it gets a thread of its own. The base class keeps no state that a subclass's `__init__` could
forget to set up.
"""

from __future__ import annotations

import copy
import inspect
import json
import logging
import random
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Self

from agentrl import tracing
from agentrl.envs.closing import close_in_time
from agentrl.envs.context import Messages as Messages
from agentrl.envs.context import context_of
from agentrl.envs.reward_marks import FinalReward as FinalReward
from agentrl.envs.reward_marks import RewardMark as RewardMark
from agentrl.envs.reward_marks import members, reward_mark, reward_marks
from agentrl.envs.reward_marks import reward as reward
from agentrl.envs.reward_marks import reward_value as reward_value
from agentrl.envs.state import resolve
from agentrl.errors import EnvError, InvalidInput, StateUnsupported
from agentrl.tools.marks import find_lost
from agentrl.tools.registry import ToolRegistry
from agentrl.tools.tool import mark_of
from agentrl.types import AGENT, FunctionCall, Message, StepResult, Task, ToolCall

if TYPE_CHECKING:
    from agentrl.envs.fixtures import Fixture

_log = logging.getLogger(__name__)
_JSON = json.JSONEncoder(ensure_ascii=False)


class Env:
    """A world for one agent, or several that take turns. Subclass it; only `tasks` and `reset` must be written.

    Attributes:
        agents: their names, without a slash. Each agent of several sees only its own messages; a message that `step` is
            given has the agent that wrote it as its `name`.
        simultaneous: whether the agents move at once, in rounds: their turns are generated concurrently, and none sees
            another's of the same round.
        teams: names of teams, and their members; a reward of a team is that of each member.
        max_turns: assistant turns of all agents together, after which the episode is cut off; None: as the run has it.
        splits: the splits that `tasks` knows.
        stop_strings: what ends a turn besides its end token. With any, the agent writes plain text: `step` gets all of
            it as content (no reasoning or tool calls are parsed), and may continue it (`StepResult.continuation`).
        return_range: the least and the greatest sum that the step rewards of an episode can have.
        version: of its rules and of what `state` returns; a state is restored only where it is the same.
        quick: whether its plain methods return at once: they are called on the event loop then, not in a thread. It is
            said of this class, not of those that inherit from it.
        needs: what it needs besides agentrl, in words, such as "Docker"; `agentrl envs` shows it.
        chance: the mean score of random valid play, such as 0.25 where one of four choices is right; `check_env` plays
            it, and takes an agent that gets more than that for no coincidence. Where it follows from the tasks, write
            `chance_of` instead.
    """

    agents: tuple[str, ...] = (AGENT,)
    simultaneous: bool = False
    teams: Mapping[str, tuple[str, ...]] = {}
    max_turns: int | None = None
    splits: tuple[str, ...] = ("train", "eval")
    stop_strings: tuple[str, ...] = ()
    return_range: tuple[float, float] = (0.0, 1.0)
    version: str = "1"
    needs: str = ""
    quick: bool = False
    chance: float | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Note the constructor's arguments, with which `fork` makes another instance."""
        if cls.__init__ is object.__init__ and (args or kwargs):
            raise TypeError(f"{cls.__name__}() takes no arguments")
        env = super().__new__(cls)
        context_of(env).arguments = args, kwargs
        return env

    # ------------------------------------------------------------------ what an author writes

    def tasks(self, split: str = "train") -> Iterable[Task | Mapping[str, Any]]:
        """The problems of a split, possibly without end. The same call gives the same tasks in the same order."""
        raise NotImplementedError(f"{type(self).__name__} has no tasks(split)")

    def reset(self, task: Task, *, seed: int | None = None) -> Messages | Awaitable[Messages]:
        """Begin an episode and return its opening messages; `seed` decides all that is random in it.

        With several agents: a mapping from each agent to its own. They take turns in that order, beginning with the
        first, unless they move at once (`simultaneous`) or `StepResult.next` says otherwise.
        """
        raise NotImplementedError(f"{type(self).__name__} has no reset(task, seed=…)")

    def prepare(self, tasks: Sequence[Task], sessions: int) -> Awaitable[None] | None:
        """Get ready what episodes of these tasks will need, at most `sessions` of them side by side.

        Optional; called before a batch of episodes begins, on an instance that plays none of them. It should return
        at once and go on in the background.
        """
        return None

    def chance_of(self, tasks: Sequence[Task]) -> float | None:
        """The mean score of random valid play in these tasks, None where nobody can say; by default `chance`."""
        return self.chance

    def brief(self, task: Task) -> Task | Awaitable[Task]:
        """Return the part of the task that an agent program is given, after `reset`; by default all of it.

        Override it where a task's data holds what no agent may see, or where the program needs to know more, such as
        the episode's sandbox.
        """
        return task

    def step(self, message: Message) -> StepResult | Awaitable[StepResult]:
        """Answer the agent. By default: run its tool calls; a message without any is the final answer."""
        return self.run_tools(message)

    def close(self) -> Awaitable[None] | None:
        """Give everything back; called at least once, and harmless the second time.

        A plain method runs in a thread of its own.
        """
        return None

    def expert(self, messages: Sequence[Message]) -> str | Message | Awaitable[str | Message]:
        """The next message of a perfect agent: `self.call(…)`, or its final answer as text.

        Optional; warm starts (by way of `demonstrate`) and `check_env` want it. `messages` is the conversation so far.
        """
        raise NotImplementedError(f"{type(self).__name__} has no expert")

    def demonstrate(self, messages: Sequence[Message], rng: random.Random) -> str | Message | Awaitable[str | Message]:
        """Return the message that a warm start imitates: the expert's, unless a demonstrator that errs is written here.

        It may be written without an expert: one that is sometimes rewarded is enough. `rng` is seeded by the run, the
        demonstration and the turn, so that a task which is demonstrated again is demonstrated differently, and a run
        repeats; a method that needs none may leave the parameter out.
        """
        return self.expert(messages)

    def fixtures(self) -> Iterable[Fixture]:
        """Answers that must get full, partial or no credit: tests of the rewards, which `check_env` plays.

        Optional.
        """
        return ()

    def critic_view(self, agent: str) -> Sequence[float] | Awaitable[Sequence[float]]:
        """Return a central critic's observation before a turn of `agent`, besides the agent's own tokens, as numbers.

        Optional. They may tell what the agent does not know; no agent and no engine gets them. There are as many each
        time, which is `algo.value_view`; the critic is linear in them.
        """
        raise NotImplementedError(f"{type(self).__name__} has no critic_view(agent)")

    def open_sandbox(self) -> Any | Awaitable[Any]:
        """The sandbox that tools marked `sandbox=True` get; called once an episode, when first needed."""
        raise EnvError(f"{type(self).__name__} has sandbox tools and no open_sandbox()")

    def state(self) -> Any | Awaitable[Any]:
        """The episode as it is between two steps, as plain data from which `restore` continues it.

        Optional, together with `restore`. Allowed are None, booleans, numbers, text, bytes, lists and mappings with
        text keys; the task and what follows from it may be left out. `snapshot_sandbox` gives a sandbox's files.

        Raises:
            StateUnsupported: there is none, or none at this point of the episode.
        """
        raise StateUnsupported(f"{type(self).__name__} has no state(): its episodes can't be saved")

    def restore(self, task: Task, state: Any) -> Awaitable[None] | None:
        """Continue an episode, instead of beginning one with `reset`: the same messages then get the same answers.

        Args:
            task: the episode's task.
            state: what `state` returned in another instance, perhaps in another process (tuples became lists).
        """
        raise StateUnsupported(f"{type(self).__name__} has no restore(): its episodes can't be continued elsewhere")

    async def fork(self) -> Env:
        """Another instance with the same episode; what happens in one does not change the other.

        By default a new instance, made with the same arguments, in which this one's state is restored.

        Raises:
            StateUnsupported: the environment has no state, or none at this point of the episode.
        """
        context = context_of(self)
        if context.episode is None:
            raise EnvError(f"{type(self).__name__} has begun no episode that could be forked")
        state = copy.deepcopy(await resolve(self.state()))
        args, kwargs = context.arguments
        other = type(self)(*args, **kwargs)
        try:
            await resolve(other.restore(context.episode[0], state))
        except BaseException:
            await close_in_time(other)
            raise
        return other

    @classmethod
    def recipe(cls, model: str) -> Mapping[str, Any]:
        """Settings of a run (dotted keys) that suit this environment with this model; the user's own go first."""
        return {}

    # ------------------------------------------------------------------ what an author calls

    def earn(self, reward: float) -> None:
        """Add to the reward of the step under way; tools and `step` call it, before they are over.

        Raises:
            InvalidReward: it is no finite number.
        """
        number = reward_value(reward, f"{type(self).__name__}.earn, as the reward,")
        self.tools.effects.apply(f"{type(self).__name__}.earn", lambda: context_of(self).earn(number))

    def end(self) -> None:
        """The task has reached its end with the step under way; tools and `step` call it, before they are over."""
        self.tools.effects.apply(f"{type(self).__name__}.end", context_of(self).end)

    def call(self, name: str, /, **arguments: Any) -> Message:
        """An assistant message that calls one tool; experts write it."""
        function = FunctionCall(name=name, arguments=_JSON.encode(arguments))
        call = ToolCall(id=context_of(self).new_call_id(), function=function)
        return Message(role="assistant", tool_calls=[call])

    async def run_tools(self, message: Message) -> StepResult:
        """Run a message's tool calls, in order and up to the one that ends the task.

        A message without calls is the final answer: it terminates the episode.
        """
        answers: list[Message] = []
        for call in message.tool_calls or ():
            answers.append(await self.tools.run(call))
            if context_of(self).over:
                break
        earned, over = context_of(self).collect()
        return StepResult(answers, reward=earned, terminated=over or not answers)

    async def spawn(
        self, messages: Messages, *, tools: Sequence[str] = (), max_turns: int = 8, name: str = "sub-agent"
    ) -> str:
        """Let the agent whose turn it is do a part of the task in a conversation of its own; tools and `step` call it.

        Its turns are trained with the agent's reward. They count against the deadlines of the tool and the turn that
        they are a part of, and against the session's tokens.

        Args:
            messages: what it is told; it sees nothing else.
            tools: the names of the environment's tools that it has.
            max_turns: its assistant turns.
            name: in the session its turns are of the agent "AGENT/name".

        Returns:
            The text of its first message without tool calls.

        Raises:
            ToolError: it came to no end, or the call that begins it is over.
            EnvError: no step is under way, or there is no such tool, or one of a sub-agent's tools called it.
        """
        self.tools.effects.require(f"{type(self).__name__}.spawn")
        run = context_of(self).run_sub_agent
        if run is None:
            raise EnvError(f"{type(self).__name__}.spawn: sub-agents begin within a step of an episode")
        return await run(messages, tools, max_turns, name)

    async def snapshot_sandbox(self) -> dict[str, Any] | None:
        """The files of the sandbox that `open_sandbox` gave, for `state`; None where no tool has used it yet."""
        sandbox = context_of(self).sandbox
        return None if sandbox is None else (await sandbox.snapshot()).plain()

    async def restore_sandbox(self, files: Mapping[str, Any] | None) -> None:
        """Open the sandbox with these files, for `restore`; None leaves it to the first tool that needs it."""
        if files is not None:
            from agentrl.tools.sandbox.base import Snapshot

            await (await self._get_sandbox()).restore(Snapshot.of(files))

    # ------------------------------------------------------------------ what a run reads

    @cached_property
    def tools(self) -> ToolRegistry:
        """This instance's tools: its `@tool` methods, base classes first; `tools.add` offers more."""
        names = _tool_names(type(self))  # type: ignore[arg-type]  # mypy takes an instance's hash for the class's
        return ToolRegistry((getattr(self, name) for name in names), sandbox=self._get_sandbox)

    def for_task(self, task: Task) -> Env:
        """The instance that plays a task: this one; that of a part where this is a mixture (`envs.data.mixture`)."""
        return self

    @property
    def unwrapped(self) -> Env:
        """The environment itself, without wrappers."""
        return self

    def _identity(self) -> str:
        """The name that states are bound to."""
        return type(self).__name__

    async def _get_sandbox(self) -> Any:
        context = context_of(self)
        if context.sandbox is None:
            with tracing.span("sandbox"):
                handle = self.open_sandbox()
                context.sandbox = await handle if inspect.isawaitable(handle) else handle
        return context.sandbox


@lru_cache(maxsize=256)  # every episode asks, mostly of the same few classes
def _tool_names(cls: type) -> tuple[str, ...]:
    """The names of a class's `@tool` methods, base classes first."""
    found = tuple(name for name, member in members(cls).items() if mark_of(member) is not None)
    _check_marks(cls, found, lost_tools(cls), "@tool")
    return found


@lru_cache(maxsize=256)
def _reward_marks(cls: type) -> dict[str, RewardMark]:
    """Return `reward_marks`, checked."""
    found = reward_marks(cls)
    _check_marks(cls, found, lost_rewards(cls), "@reward")
    return found


def lost_tools(cls: type) -> list[str]:
    """Say how methods of a class have lost their `@tool`."""
    return find_lost(cls, mark_of, "@agentrl.tool")


def lost_rewards(cls: type) -> list[str]:
    """Say how methods of a class have lost their `@reward`."""
    return find_lost(cls, reward_mark, "@agentrl.reward")


def _check_marks(cls: type, names: Iterable[str], lost: Sequence[str], mark: str) -> None:
    """Warn of lost marks; refuse marked methods that take the place of those that agentrl calls itself."""
    for words in lost:
        _log.warning("%s", words)
    if taken := next((name for name in names if name in vars(Env)), None):
        raise InvalidInput(
            f"{cls.__name__}.{taken} is marked {mark} and takes the place of Env.{taken}, which agentrl itself uses: "
            f"call the method otherwise ({mark}(name={taken!r}) keeps its name)"
        )


def reward_methods(env: Env) -> list[FinalReward]:
    """An environment's `@reward` methods, base classes first, and then the run's `rewards.*`, by name.

    One of those that has the name of a method replaces it.
    """
    env, added = env.unwrapped, context_of(env.unwrapped).added_rewards
    replaced = {mark.name for mark, _ in added}
    marks = _reward_marks(type(env))  # type: ignore[arg-type]  # as for tools
    return [(mark, getattr(env, name)) for name, mark in marks.items() if mark.name not in replaced] + list(added)


def has_expert(env: Env | type[Env]) -> bool:
    """Return whether an expert is written for this environment."""
    cls = env if isinstance(env, type) else type(env.unwrapped)
    return cls.expert is not Env.expert


def has_demonstrator(env: Env | type[Env]) -> bool:
    """Return whether a warm start has something to imitate: a demonstrator, or the expert in its place."""
    cls = env if isinstance(env, type) else type(env.unwrapped)
    return has_expert(cls) or cls.demonstrate is not Env.demonstrate


def has_critic_view(env: Env | type[Env]) -> bool:
    """Return whether an environment tells a critic more than its agents know."""
    cls = env if isinstance(env, type) else type(env.unwrapped)
    return cls.critic_view is not Env.critic_view


def has_state(env: Env | type[Env]) -> bool:
    """Return whether an environment can save and restore its episodes."""
    cls = env if isinstance(env, type) else type(env.unwrapped)
    return cls.state is not Env.state and cls.restore is not Env.restore


def has_fork(env: Env | type[Env]) -> bool:
    """Return whether an environment can fork its episodes: by its state, or in a way of its own."""
    cls = env if isinstance(env, type) else type(env.unwrapped)
    return has_state(cls) or cls.fork is not Env.fork
