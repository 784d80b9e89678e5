"""`agentrl play`: a person plays an agent in the terminal, with a model's tools, and the session is stored."""

from __future__ import annotations

import asyncio
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from agentrl.common import formats
from agentrl.envs import calls
from agentrl.envs.base import Env, has_expert
from agentrl.envs.data.lines import call_of, format_message, signature
from agentrl.envs.data.samples import random_policy
from agentrl.envs.episode import NO_DEADLINES, ScriptedActor, ScriptedPolicy, expert_policy, run_episode
from agentrl.envs.recorded_turns import RecordedTurns, read_session
from agentrl.envs.registry import factory
from agentrl.envs.turns import Player
from agentrl.errors import ConfigError, TokenBudgetExceeded, ToolArguments, unknown_name
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree.conversation import Conversation
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.types import Message, Session, Status, Task

HELP = (
    "Write a message, or call a tool: /NAME ARGUMENT… or /NAME key=value … or /NAME {JSON}.",
    'A line that ends in "\\" goes on in the next one.',
    "Of a session that is played again, an empty line takes the turn as it was recorded, :rest all that are left.",
    ":tools lists the tools, :expert lets the expert take this turn, :quit (or Ctrl-D, Ctrl-C) ends the session.",
)
POLL = 0.2
"""Seconds after which a terminal's input is looked at again."""
LISTED = 100_000
"""Tasks among which one is looked for by its id."""

Show = Callable[[Iterable[str]], None]
"""Prints lines."""


class PlayerLeft(TokenBudgetExceeded):
    """The player has ended the session, which is then truncated as at any other limit."""


def read_line(prompt: str) -> str:
    """A line of the input; on a terminal Ctrl-C is noticed also just before it blocks."""
    print(prompt, end="", flush=True)
    while sys.stdin.isatty() and not select.select([sys.stdin], [], [], POLL)[0]:
        pass
    return input()


@dataclass
class Person:
    """A person at a terminal or behind a pipe, as a policy.

    Attributes:
        agent: the agent that the person plays.
        show: prints lines.
        read: reads a line behind a prompt; EOFError where there is none.
        seen: the conversation as the person has seen it, without what the person answered.
        record: the turns of a session that is played again.
    """

    agent: str
    show: Show
    read: Callable[[str], str] = read_line
    seen: list[Message] = field(default_factory=list)
    record: RecordedTurns | None = None
    _rest: bool = field(default=False, repr=False)
    _calls: int = field(default=0, repr=False)

    async def __call__(self, env: Env, messages: Sequence[Message]) -> Message:
        """Show what is new, and read lines until they make a message."""
        self.show_new(messages)
        turn = None if self.record is None else self.record.turn(self.agent, messages)
        while True:
            line = "" if self._rest and turn is not None else self._line()
            self._rest = self._rest or line == ":rest"
            if turn is not None and line in ("", ":rest"):
                return self._show_message(turn)
            message = await self._read_line(env, messages, line)
            if message is not None:
                if self.record is not None:
                    self.record.over = True
                return message

    async def _read_line(self, env: Env, messages: Sequence[Message], line: str) -> Message | None:
        """The message of a line; None where it is none."""
        try:
            if line == ":quit":
                raise PlayerLeft("the player has left")
            if line == ":expert":
                return self._show_message(await calls.expert(env, messages))
            if self.record is not None and line in ("", ":rest"):
                self.show(["no turn is recorded here: write a message"])
            elif line.startswith(":"):
                self.show(self._answer_command(env, line))
            elif line.startswith("/"):
                return call_of(line[1:], env, self._next_id())
            elif line:
                return Message(role="assistant", content=line)
        except (ConfigError, ToolArguments, LookupError) as error:
            self.show([str(error)])
        return None

    def show_new(self, messages: Sequence[Message]) -> None:
        """Show what was said since the person's last message; all where the path begins anew (`StepResult.fresh`)."""
        goes_on = list(messages[: len(self.seen)]) == self.seen
        known = len(self.seen) + bool(self.seen) if goes_on else 0
        for message in messages[known:]:
            self.show(format_message(message))
        if self.record is not None:
            self.show(self.record.differences(self.agent, messages, known))
        self.seen = list(messages)

    def _answer_command(self, env: Env, line: str) -> Sequence[str]:
        if line == ":tools":
            return [signature(tool) for tool in env.tools] or ["there are no tools: write messages"]
        return HELP if line == ":help" else [f"{line!r} is no command; :help tells what there is"]

    def _show_message(self, message: Message) -> Message:
        self.show(format_message(message))
        return message

    def _next_id(self) -> str:
        self._calls += 1
        return f"call_{self._calls}"

    def _line(self) -> str:
        """The next line, with those that it goes on in."""
        lines = list[str]()
        try:
            while True:
                line = self.read("… " if lines else "> ")
                if not sys.stdin.isatty():
                    self.show([line])  # a pipe's input is part of the transcript as well
                lines.append(line.removesuffix("\\"))
                if not line.endswith("\\"):
                    return "\n".join(lines).strip()
        except (EOFError, KeyboardInterrupt):
            self.show([""])
            raise PlayerLeft("the player has left") from None


@dataclass(frozen=True)
class _Game:
    """The environment and the task that are played.

    Attributes:
        make: makes the environment.
        options: its constructor's.
        seed: the episode's randomness.
        player: the agent that the person plays; "" is the first one.
        folder: where the session is kept, as that of a run.
        record: a session whose turns are taken again.
    """

    make: Callable[[], Env]
    name: str
    options: Mapping[str, Any]
    task: Task
    seed: int
    player: str
    folder: Path
    record: Session | None = None


def game_of(tree: Mapping[str, Any]) -> _Game:
    """Read the words `env=NAME task=0 split=train seed=0 player=… run_dir=… from=… session=…`.

    Raises:
        ConfigError: a setting is missing, unknown, or of the wrong type.
        UnknownName: no such environment or task.
        EnvError: the environment's code failed.
    """
    tree = dict(tree)
    subject = tree.pop("env", None)
    options = dict(subject) if isinstance(subject, dict) else {"name": subject}
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError("say what to play: env=NAME, and its options as env.KEY=VALUE")
    folder = re.sub(r"[^\w.-]+", "-", name)
    given: dict[str, Any] = {"task": 0, "split": "", "seed": 0, "player": "", "run_dir": f"runs/play-{folder}"}
    given |= {"from": "", "session": ""}
    for key, value in tree.items():
        if key not in given:
            raise unknown_name("setting of play", key, [*given, "env"])
        if isinstance(value, bool) or not isinstance(value, (str, int) if key == "task" else type(given[key])):
            raise ConfigError(f"{key} = {value!r}: must be a {'whole number' if key == 'seed' else 'name or number'}")
        given[key] = value
    make = factory(name, **options)
    kept: dict[str, Any] = {"player": str(given["player"]), "folder": Path(str(given["run_dir"]))}
    if given["from"] or given["session"]:
        if chosen := [key for key in ("task", "split", "seed") if key in tree]:
            raise ConfigError(f"{chosen[0]}={tree[chosen[0]]}: a session that is played again has its own")
        record = read_session(str(given["from"]), str(given["session"]))
        return _Game(make, name, options, record.task, record.seed, **kept, record=record)
    env = make()
    task = task_of(env, given["task"], str(given["split"] or env.splits[0]))
    return _Game(make, name, options, task, int(given["seed"]), **kept)


def task_of(env: Env, wanted: str | int, split: str) -> Task:
    """A task by its index in a split, or by its id.

    Raises:
        UnknownName: there is none of that id.
        EnvError: there is no such split.
        ConfigError: the split has fewer tasks.
    """
    listed = calls.tasks(env, split)
    if isinstance(wanted, int):
        if wanted < 0 or (found := next(islice(listed, wanted, None), None)) is None:
            raise ConfigError(f"task = {wanted}: split {split!r} has no task of that index")
        return found
    ids = list[str]()
    for task in islice(listed, LISTED):
        if task.id == wanted:
            return task
        ids.append(task.id)
    raise unknown_name("task", wanted, ids)


def play_in_terminal(game: _Game, show: Show, read: Callable[[str], str] = read_line) -> Session:
    """Let a person play one episode, and store its session after every turn.

    Others than the person's agent are played by the environment's expert, or at random where it has none.

    Raises:
        UnknownName: the environment has no such agent.
        EnvError: its code failed; what was played is stored.
    """
    env = game.make()
    player = game.player or env.agents[0]
    if player not in env.agents:
        raise unknown_name("agent", player, env.agents)
    record = None if game.record is None else RecordedTurns(game.record)
    _begin_folder(game)
    with Store(game.folder / "sessions.db") as store:
        name = f"{game.task.id}-{time.strftime('%Y%m%d-%H%M%S')}-{len(store.ids())}"
        session = Session(id=name, task=game.task, seed=game.seed, phase="play", environment=game.name)
        session.started = time.time()
        show([*HELP, *(signature(tool) for tool in env.tools)])
        try:
            _interruptible(_play(env, session, Person(player, show, read, record=record), store))
        except KeyboardInterrupt:  # in the midst of a step
            session.status, session.error = Status.TRUNCATED, "the player has left"
        finally:
            session.ended = time.time()
            store.save(session)
    return session


def _begin_folder(game: _Game) -> None:
    """Make the folder, with the settings by which the viewer knows a run."""
    settings = game.folder / "config.yaml"
    own = {"played": True, "env": {"name": game.name, **game.options}}
    try:
        game.folder.mkdir(parents=True, exist_ok=True)
        formats.check_run(game.folder)
        if not settings.exists():
            (game.folder / formats.NAME).write_bytes(formats.mark_run())
            settings.write_text(yaml.safe_dump(own), encoding="utf-8")
        elif "played" not in (yaml.safe_load(settings.read_text(encoding="utf-8")) or {}):
            raise ConfigError(f"run_dir = {str(game.folder)!r}: a run of something else is there")
    except OSError as error:
        raise ConfigError(f"run_dir = {str(game.folder)!r}: can't write there: {error.strerror}") from None


async def _play(env: Env, session: Session, person: Person, store: Store) -> None:
    generator, tools = TurnGenerator(NullRenderer(), None), env.tools.schemas()
    others: ScriptedPolicy = expert_policy if has_expert(env) else random_policy(session.seed)

    def other(agent: str) -> ScriptedPolicy:
        if person.record is None:
            return others
        record = person.record
        return lambda env, messages: record.turn(agent, messages) or others(env, messages)

    async def stored(turn: int, agents: Sequence[str], order: Sequence[str]) -> None:
        store.save(session)

    players = {
        agent: Player(
            Conversation(session, generator, tools=tools, agent=agent, stop=env.stop_strings),
            ScriptedActor(person if agent == person.agent else other(agent)),
        )
        for agent in env.agents
    }
    await run_episode(env, session, players, NO_DEADLINES, before_turn=stored)
    person.show_new(players[person.agent].conversation.messages)


def _interruptible(work: Any) -> None:
    """Run a coroutine so that Ctrl-C is a KeyboardInterrupt where it waits for input.

    `asyncio.run` by itself turns Ctrl-C into a cancellation, which `input` does not notice.
    """

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with asyncio.Runner() as runner:
            runner.run(work)
    finally:
        signal.signal(signal.SIGINT, before)
