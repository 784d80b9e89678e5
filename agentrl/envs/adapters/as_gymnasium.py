"""Any agentrl environment as a `gymnasium.Env`, for programs that drive Gymnasium's interface.

    env = AsGymnasium("calculator", split="train")
    observation, info = env.reset(seed=1)
    call = '{"name": "calculator", "arguments": {"expression": "1 + 2"}}'
    observation, reward, terminated, truncated, info = env.step(call)

An observation is the text of the messages that are new to the agent, an action the agent's message: text, or tool calls
as JSON. The episode is played by the loop that plays all episodes (`envs.episode`), with this class as its agent, so
limits, rewards and closing are the same.
"""

from __future__ import annotations

import asyncio
import json
import string
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import gymnasium
from gymnasium import spaces

from agentrl.common.untrusted import read_json
from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.envs.episode import play
from agentrl.envs.registry import EnvFactory, factory
from agentrl.envs.wrappers import Opening, Wrapper
from agentrl.errors import ConfigError, InvalidInput
from agentrl.tools.schema import show_value
from agentrl.types import FunctionCall, Message, Session, Status, StepResult, Task, ToolCall

TASKS = 1000
"""Tasks that are listed of a split, which may be endless."""
MAX_LENGTH = 1_000_000


class AnyText(spaces.Text):  # type: ignore[misc]
    """Text of any characters; samples are printable."""

    def __init__(self) -> None:
        super().__init__(MAX_LENGTH, charset=string.ascii_letters + string.digits + " ")

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= MAX_LENGTH

    def sample(self, *args: Any, **kwargs: Any) -> str:
        return "".join(self.np_random.choice(self.character_list, size=self.np_random.integers(1, 20)))


class AsGymnasium(gymnasium.Env[str, str]):  # type: ignore[misc]
    """An agentrl environment with one agent, as Gymnasium has them.

    `info` has the new messages (OpenAI's shape), the task's id, and after `reset` the tools' schemas; at an episode's
    end `rewards`, the final ones by name. `tools` has the schemas as well.
    """

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012

    def __init__(
        self,
        env: str | EnvFactory,
        split: str = "train",
        *,
        max_turns: int | None = None,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        """Make an environment.

        Args:
            env: a known name, path/to/file.py:Class, or a class.
            split: whose tasks are played.
            max_turns: assistant turns, after which an episode is truncated; the environment's own limit holds as well.
            render_mode: `ansi`, or None.
            options: of the environment's constructor.

        Raises:
            ConfigError: it has several agents, or the split has no task.
        """
        self._make = factory(env, **options)
        first = self._make()
        if len(first.agents) > 1:
            raise ConfigError(f"{env!r} has the agents {', '.join(first.agents)}: allowed: an environment with one")
        self._tasks = {task.id: task for task in islice(calls.tasks(first, split), TASKS)}
        if not self._tasks:
            raise ConfigError(f"{env!r} has no tasks in split {split!r}")
        self.tools, self.max_turns, self.render_mode = first.tools.schemas(), max_turns, render_mode
        self.observation_space, self.action_space = AnyText(), AnyText()
        self._loop = asyncio.Runner()
        self._playing: asyncio.Task[Session] | None = None
        self._answer: asyncio.Future[Message] | None = None
        self._asked = asyncio.Event()
        self._earned, self._given = 0.0, 0.0
        self._new: list[Message] = []
        self._transcript: list[Message] = []

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode of a random task, or of `options["task"]`, an id.

        Raises:
            InvalidInput: there is no such task.
        """
        super().reset(seed=seed)
        chosen = (options or {}).get("task")
        if chosen is None:
            chosen = list(self._tasks)[int(self.np_random.integers(len(self._tasks)))]
        if chosen not in self._tasks:
            raise InvalidInput(f"options['task'] = {chosen!r}: there is no such task")
        self._loop.run(self._begin(self._tasks[chosen], int(self.np_random.integers(2**31))))
        return self._observe({"task": chosen, "tools": self.tools})

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Give the agent's message: text, or tool calls as JSON, `{"name": …, "arguments": {…}}` or a list of these.

        Raises:
            InvalidInput: no episode has begun, or it is over.
            EnvError: the environment's code failed.
        """
        answer, playing = self._answer, self._playing
        if answer is None or playing is None:
            raise InvalidInput("there is no episode: call reset first")
        message = message_of(action, len(self._transcript))
        self._transcript.append(message)
        self._loop.run(self._go_on(playing, answer, message))
        session = playing.result() if playing.done() else None
        info: dict[str, Any] = {}
        total, over = self._earned, session is not None
        if session is not None:
            total, self._answer = session.score or 0.0, None
            info = {"rewards": dict(session.rewards), "status": session.status.value}
        reward, self._given = total - self._given, total
        truncated = session is not None and session.status is Status.TRUNCATED
        observation, messages = self._observe(info)
        return observation, reward, over and not truncated, truncated, messages

    def render(self) -> str | None:
        """The conversation as text, where render_mode is `ansi`."""
        if self.render_mode != "ansi":
            return None
        return "\n".join(f"{message.role}: {_text(message)}" for message in self._transcript)

    def close(self) -> None:
        self._loop.run(self._abandon())
        self._loop.close()

    # ------------------------------------------------------------------ the episode

    async def _begin(self, task: Task, seed: int) -> None:
        await self._abandon()
        self._earned = self._given = 0.0
        self._new, self._transcript, self._asked = [], [], asyncio.Event()
        env = _Watched(self._make(), self._see)
        playing = asyncio.create_task(play(env, task, self._act, seed=seed, max_turns=self.max_turns))
        self._playing = playing
        await self._until_asked(playing)

    async def _go_on(self, playing: asyncio.Task[Session], answer: asyncio.Future[Message], message: Message) -> None:
        self._asked.clear()
        answer.set_result(message)
        await self._until_asked(playing)

    async def _until_asked(self, playing: asyncio.Task[Session]) -> None:
        """Wait until the agent is to write a message, or the episode has ended."""
        asked = asyncio.create_task(self._asked.wait())
        await asyncio.wait({playing, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if playing.done():
            playing.result()

    async def _act(self, env: Env, messages: Sequence[Message]) -> Message:
        self._answer = asyncio.get_running_loop().create_future()
        self._asked.set()
        return await self._answer

    async def _abandon(self) -> None:
        playing, self._playing, self._answer = self._playing, None, None
        if playing is not None and not playing.done():
            playing.cancel()
            await asyncio.wait({playing})

    def _see(self, messages: Sequence[Message], reward: float | None) -> None:
        self._new += messages
        self._earned += reward or 0.0

    def _observe(self, info: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        new, self._new = self._new, []
        self._transcript += new
        text = "\n".join(message.text for message in new)[:MAX_LENGTH]
        return text, {"messages": [message.model_dump(exclude_none=True) for message in new], **info}


class _Watched(Wrapper):
    """Tells what the environment sends to the agent, and each step's reward."""

    def __init__(self, env: Env, see: Callable[[Sequence[Message], float | None], None]) -> None:
        super().__init__(env)
        self._see = see

    async def reset(self, task: Task, *, seed: int | None = None) -> Opening:
        opening = await super().reset(task, seed=seed)
        assert isinstance(opening, list)
        self._see(opening, None)
        return opening

    async def step(self, message: Message) -> StepResult:
        result = await super().step(message)
        self._see(result.messages, result.reward)
        return result


def message_of(action: str, turn: int = 0) -> Message:
    """The assistant message that an action stands for; `turn` is in the ids of its calls.

    Raises:
        InvalidInput: it is no text.
    """
    if not isinstance(action, str):
        raise InvalidInput(f"action = {show_value(action)}: allowed: text, or tool calls as JSON")
    try:
        value = read_json(action)
    except ValueError:
        value = None
    wanted = value if isinstance(value, list) else [value]
    if not wanted or not all(isinstance(call, dict) and call.keys() == {"name", "arguments"} for call in wanted):
        return Message(role="assistant", content=action)
    made = [
        ToolCall(
            id=f"call_{turn}_{i}", function=FunctionCall(name=str(c["name"]), arguments=json.dumps(c["arguments"]))
        )
        for i, c in enumerate(wanted)
    ]
    return Message(role="assistant", tool_calls=made)


def _text(message: Message) -> str:
    made = "".join(f" {call.function.name}({call.function.arguments})" for call in message.tool_calls or ())
    return message.text + made
