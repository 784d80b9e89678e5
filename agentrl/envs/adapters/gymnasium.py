"""`env=gymnasium:CartPole-v1`: Gymnasium's environments, and those registered with it, as text and tool calls.

An action is a call of the tool `act`, whose arguments have the action space's JSON schema, or the turn's own text
(`env.form=text`); the observation is the answer. Rewards, termination and truncation are the environment's own. A task
is a seed, which its `reset` is given, so that an episode begins and goes on as it does in any other program.

An episode is saved as its seed and its actions, and restored by taking them again.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import random
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Literal, TypeVar

from agentrl.common.imports import load
from agentrl.common.untrusted import read_json
from agentrl.envs.adapters import library
from agentrl.envs.adapters.planning import planned_action
from agentrl.envs.adapters.seeded import EVAL_SEEDS, ActionEnv, say
from agentrl.errors import ConfigError, EnvError, InfraError, StateUnsupported, ToolArguments
from agentrl.tools.schema import show_value
from agentrl.tools.threads import run_in_thread, start
from agentrl.tools.tool import Tool
from agentrl.types import Message, StepResult, Task

logger = logging.getLogger(__name__)
T = TypeVar("T")
CUT_OFF = "a deadline cut a call of the environment off, which goes on: where it is now is not known"
EXTRA = "gymnasium"
ACT = "act"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Described:
    """Properties that all instances of an environment share."""

    observations: Any
    actions: Any
    allowed: str
    parameters: Mapping[str, Any]
    max_steps: int | None


Key = tuple[str, str]
_described: dict[Key, Described] = {}
_idle: defaultdict[Key, list[Any]] = defaultdict(list)
MAX_IDLE = 256
"""Environments of a kind that are kept: making one may take longer than an episode."""


@atexit.register
def _close_idle() -> None:
    for env in chain.from_iterable(_idle.values()):
        env.close()


class Gymnasium(ActionEnv):
    """An environment of Gymnasium, as in env=gymnasium:FrozenLake-v1; see docs/adapters.md."""

    _env: Any = None
    _seen: Any = None
    _truncated = False
    _cut_off = False

    def __init__(
        self,
        source: str,
        form: Literal["tools", "text"] = "tools",
        actions: tuple[str, ...] = (),
        observe: Literal["values", "ansi"] = "values",
        renderer: str | None = None,
        mask: str | None = None,
        info: tuple[str, ...] = (),
        prompt: str | None = None,
        digits: int = 4,
        demonstrator: str | None = None,
        episodes: int = 1000,
        idle_reward: float = 0.0,
        returns: tuple[float, float] = (float("-inf"), float("inf")),
        quick: bool = True,
        reuse: bool = True,
        **options: Any,
    ) -> None:
        """Make an environment.

        Args:
            source: its id, as gymnasium.make takes it: CartPole-v1, or package.module:Name-v0.
            form: `tools`, an action is a call of the tool `act`; `text`, it is the turn's text.
            actions: names for the actions of a Discrete space, in order, such as [left,down,right,up].
            observe: `values`, the observation; `ansi`, Gymnasium's rendering as text.
            renderer: path/to/file.py:function of the observation and the environment, which returns text.
            mask: which key of `info` or of a Dict observation, or which method of the environment, says which actions
                are allowed now: the agent is told, and another action is refused.
            info: keys of `info` that the agent is told beside the observation.
            prompt: what stands before the first observation.
            digits: significant digits of numbers in observations.
            demonstrator: path/to/file.py:function of the observation and the environment, which returns an action for
                a warm start to imitate; without one half of them are the best by the environment's table of
                transitions, where it has one, and the others random.
            episodes: tasks of the split `train`, each a seed.
            idle_reward: of a turn without a valid action.
            returns: the least and greatest sum of an episode's rewards.
            quick: false runs the environment in threads: for steps of more than 20 ms.
            reuse: reset environments for further episodes, instead of making one for each.
            options: of gymnasium.make.
        """
        self._spaces = library("agentrl.envs.adapters.spaces", EXTRA)
        self._masks = library("agentrl.envs.adapters.masks", EXTRA)
        self.source, self.form, self.names, self.digits = source, form, tuple(map(str, actions)), digits
        self.episodes, self.idle_reward, self.return_range, self._quick = episodes, idle_reward, returns, quick
        self._ansi, self._reuse = observe == "ansi", reuse
        self._options = {**options, "render_mode": "ansi"} if self._ansi else dict(options)
        self._renderer = load(renderer, f"env.renderer={renderer!r}") if renderer else None
        self._demonstrator = load(demonstrator, f"env.demonstrator={demonstrator!r}") if demonstrator else None
        self._mask_name, self._told = mask, tuple(map(str, info))
        self._about = _describe(source, self._options)
        self._check_options()
        self.max_turns = self._about.max_steps
        self.prompt = self._default_prompt() if prompt is None else prompt
        if form == "tools":
            self.tools.add(self._tool())
        self._info: Mapping[str, Any] = {}
        self._taken: list[Any] = []
        self._in_use = threading.Lock()

    def _default_prompt(self) -> str:
        answer = "" if self.form == "tools" else f" Answer with {self._allowed} and nothing else."
        return f"{self.source}. Each turn is one action.{answer}"

    # ------------------------------------------------------------------ the episode

    async def reset(self, task: Task, *, seed: int | None = None) -> str:
        await self.close()
        idle = _idle[self._key]
        self._env = idle.pop() if idle else await self._run(_make, self.source, self._options)
        self._taken = []
        self._seen, self._info = await self._run(partial(self._env.reset, seed=task["seed"]))
        return "\n".join(filter(None, (self.prompt, self._text())))

    async def step(self, message: Message) -> StepResult:
        result = await super().step(message)
        if self._truncated:
            result.terminated, result.truncated = False, True
        return result

    async def close(self) -> None:
        """Leave Gymnasium's environment to another episode, or close it: once no thread uses it."""
        env, self._env, self._truncated = self._env, None, False
        in_use, self._in_use = self._in_use, threading.Lock()
        cut_off, self._cut_off = self._cut_off, False
        if env is None:
            return
        if cut_off:
            start(partial(_close_later, env, in_use))
        elif self._reuse and len(_idle[self._key]) < MAX_IDLE:
            _idle[self._key].append(env)
        else:
            await self._run(env.close)

    @property
    def _key(self) -> Key:
        return _key(self.source, self._options)

    def state(self) -> dict[str, Any]:
        if self._cut_off:
            raise StateUnsupported(f"{self.source}: {CUT_OFF}")
        return {"actions": list(self._taken)}

    async def restore(self, task: Task, state: Any) -> None:
        await self.reset(task)
        for action in state["actions"]:
            await self._take(action)

    def demonstrate(self, messages: Sequence[Message], rng: random.Random) -> Message:
        """The demonstrator's action; else one of a plan, where the environment tells its table; else a random one."""
        space = self._about.actions
        if self._demonstrator is not None:
            action = self._demonstrator(self._seen, self._env.unwrapped)
        elif (action := planned_action(self._env.unwrapped, rng)) is None:
            space.seed(rng.randrange(EVAL_SEEDS))
            action = space.sample() if (mask := self._mask()) is None else self._masks.draw_action(space, mask)
        value: Any = self.names[int(action) - int(space.start)] if self.names else self._spaces.plain(space, action)
        if self.form == "text":
            return Message(role="assistant", content=value if isinstance(value, str) else json.dumps(value))
        return self.call(ACT, **(value if self._by_name else {"action": value}))

    # ------------------------------------------------------------------ actions

    def _tool(self) -> Tool:
        schema: Mapping[str, Any] = self._about.parameters
        if self.names:
            schema = {"type": "string", "enum": list(self.names)}
        if not self._by_name:
            schema = {"type": "object", "properties": {"action": schema}, "required": ["action"]}
        return Tool(ACT, f"Take an action: {self._allowed}.", schema, self._act, self._read)

    @property
    def _by_name(self) -> bool:
        """True if the parts of an action are the tool's arguments."""
        return self._about.parameters.get("type") == "object"

    @property
    def _allowed(self) -> str:
        return f"one of {', '.join(self.names)}" if self.names else self._about.allowed

    def _read(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if not self._by_name and set(arguments) != {"action"}:
            raise ToolArguments(f"the arguments = {show_value(arguments)}: allowed: action, {self._allowed}")
        value = arguments if self._by_name else arguments["action"]
        self._element(value)
        return {"value": value}

    def _element(self, value: Any) -> Any:
        """The action that decoded JSON stands for, which is allowed now; a ToolArguments where it is none."""
        action = self._spaces.read(self._about.actions, value, self.names)
        if (mask := self._mask()) is not None:
            self._masks.check_allowed(self._about.actions, mask, action, self.names)
        return action

    def _mask(self) -> Any:
        if self._mask_name is None:
            return None
        return self._masks.mask_of(self._mask_name, self._about.actions, self._info, self._seen, self._env.unwrapped)

    async def _act(self, checked: dict[str, Any], _: Any) -> str:
        reward, over = await self._take(checked["value"])
        self.earn(reward)
        if over:
            self.end()
        return self._text(over)

    async def _take_text(self, text: str) -> StepResult:
        value: Any = text.strip()
        if not self.names and self._about.parameters.get("type") != "string":
            try:
                value = read_json(value)
            except ValueError:
                return StepResult([say(f"Error: action = {show_value(value)}: allowed: {self._allowed}")])
        try:
            reward, over = await self._take(value)
        except ToolArguments as error:
            return StepResult([say(f"Error: {error}")])
        return StepResult([say(self._text(over))], reward, terminated=over)

    async def _take(self, value: Any) -> tuple[Any, bool]:
        """Take an action; its reward, and whether the episode is over."""
        action = self._element(value)
        if self._cut_off:
            raise InfraError(f"{self.source}: {CUT_OFF}")
        try:
            self._seen, reward, terminated, self._truncated, self._info = await self._run(self._env.step, action)
        except Exception as error:
            raise EnvError(f"{self.source}: step raised {type(error).__name__}: {error}") from error
        self._truncated = bool(self._truncated) and not terminated
        self._taken.append(value)
        return reward, bool(terminated) or self._truncated

    # ------------------------------------------------------------------ observations

    def _text(self, over: bool = False) -> str:
        """Return what the agent is told: the observation, what `info` adds, and what is allowed now."""
        lines = [self._describe_observation(), *self._masks.format_info(self._info, self._told, self.digits)]
        if not over and (mask := self._mask()) is not None:
            allowed = self._masks.allowed_now(self._about.actions, mask, self.names)
            lines.append(f"Allowed now: {allowed}.")
        return "\n".join(lines)

    def _describe_observation(self) -> str:
        if self._renderer is not None:
            return self._render(self._seen, self._env.unwrapped)
        if self._ansi:
            return _COLOURS.sub("", str(self._env.render())).strip("\n")
        text: str = self._spaces.text(self._about.observations, self._seen, self.digits)
        return text

    async def _run(self, function: Callable[..., T], *args: Any) -> T:
        if self._quick:
            return function(*args)
        try:
            return await run_in_thread(_alone, self._in_use, function, *args)
        except asyncio.CancelledError:
            self._cut_off = True  # the thread goes on
            raise

    def _check_options(self) -> None:
        """Raise a ConfigError where options don't fit the environment's spaces."""
        if self._mask_name is not None:
            self._masks.check_maskable(self._about.actions, self._mask_name)
        kind, numbers = type(self._about.actions).__name__, self._spaces.numbers(self._about.observations)
        if self.names and (kind != "Discrete" or len(self.names) != int(self._about.actions.n)):
            raise ConfigError(
                f"env.actions={list(self.names)!r}: {self.source} has the actions {self._about.actions}: allowed: a "
                "name for each action of a Discrete space"
            )
        if not self._ansi and self._renderer is None and numbers > self._spaces.MAX_NUMBERS:
            raise ConfigError(
                f"{self.source}: an observation has {numbers} numbers, too many to write: name a function that does "
                "(env.renderer=file.py:function), or show Gymnasium's rendering (env.observe=ansi)"
            )


def _alone(in_use: threading.Lock, function: Callable[..., T], *args: Any) -> T:
    with in_use:
        return function(*args)


def _close_later(env: Any, in_use: threading.Lock) -> None:
    """Close an environment of Gymnasium's when the thread that uses it has ended."""
    try:
        _alone(in_use, env.close)
    except Exception as error:
        logger.warning("closing an environment that a deadline had cut off raised %r", error)


def _key(source: str, options: Mapping[str, Any]) -> Key:
    return source, repr(sorted(options.items()))


def _make(source: str, options: Mapping[str, Any]) -> Any:
    """An environment of Gymnasium's; its own checks of each step are left out."""
    gymnasium = library("gymnasium", EXTRA)
    try:
        return gymnasium.make(source, disable_env_checker=True, **options)
    except (gymnasium.error.Error, ModuleNotFoundError, TypeError) as error:
        raise ConfigError(f"env=gymnasium:{source}: {error}") from error


def _describe(source: str, options: Mapping[str, Any]) -> Described:
    key = _key(source, options)
    if key not in _described:
        spaces, env = library("agentrl.envs.adapters.spaces", EXTRA), _make(source, options)
        try:
            modes = env.metadata.get("render_modes", ())
            if options.get("render_mode") == "ansi" and "ansi" not in modes:
                raise ConfigError(f"env.observe=ansi: {source} renders {', '.join(modes) or 'nothing'}, and not ansi")
            _described[key] = Described(
                observations=env.observation_space,
                actions=env.action_space,
                allowed=spaces.describe_space(env.action_space),
                parameters=spaces.schema(env.action_space),
                max_steps=env.spec.max_episode_steps if env.spec is not None else None,
            )
        finally:
            env.close()
    return _described[key]
