"""`env=pettingzoo:tictactoe-v3`: PettingZoo's games, for agents that move one after another or all at once.

The game's agents are the environment's, each with a conversation of its own. A turn's text is the action; what the
agent observes is sent before its turn. Rewards are step rewards: what a move earns, for whomever, goes to that agent's
newest turn. A task is a seed, which the game's `reset` is given, so that a game goes on as in any other program.

An action that is not allowed never reaches the game: it is answered with what is, and after three in a row the agent
forfeits, as the library has it for a single one: -1 for it, 0 for the others, and the game is over.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agentrl.common.imports import load
from agentrl.common.untrusted import read_json
from agentrl.envs.adapters import library
from agentrl.envs.adapters.seeded import EVAL_SEEDS, SeededEnv
from agentrl.envs.adapters.zoo_games import EXTRA, Api, ZooGame, describe, make
from agentrl.envs.base import reward
from agentrl.envs.reward_marks import ANY
from agentrl.errors import ConfigError, EnvError, ToolArguments
from agentrl.tools.schema import show_value
from agentrl.types import FinishReason, Message, Session, StepResult, Task

ATTEMPTS = 3
"""Texts in a row that are no allowed action, after which an agent forfeits."""
MASK = "action_mask"
"""The library's name for which actions are allowed now."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class PettingZoo(SeededEnv):
    """A game of PettingZoo, as in env=pettingzoo:tictactoe-v3; see docs/adapters.md."""

    def __init__(
        self,
        source: str,
        api: Api | None = None,
        actions: tuple[str, ...] = (),
        observe: Literal["values", "render"] | None = None,
        renderer: str | None = None,
        mask: str = MASK,
        info: tuple[str, ...] = (),
        prompt: str | None = None,
        digits: int = 4,
        forfeit: float = -1.0,
        episodes: int = 1000,
        returns: tuple[float, float] = (float("-inf"), float("inf")),
        **options: Any,
    ) -> None:
        """Make a game.

        Args:
            source: the library's id, such as tictactoe-v3 or classic/tictactoe-v3; another package's module, such as
                mpe2.simple_spread_v3; or path/to/file.py:function, which makes a game.
            api: `parallel`, all agents move at once; `aec`, one after another; by default the first where it exists.
            actions: names for the actions of Discrete spaces, in order, such as [rock,paper,scissors].
            observe: `render`, the game's rendering as text, the same for every agent; `values`, what the agent
                observes; by default the first where the game has one.
            renderer: path/to/file.py:function of the observation, the agent's name and the game, which returns text.
            mask: which key of a Dict observation or of `info` says which actions are allowed now.
            info: keys of `info` that an agent is told beside the observation.
            prompt: what stands before an agent's first observation, besides who it is.
            digits: significant digits of numbers in observations.
            forfeit: the reward of an agent that forfeits, or at whose turn a limit ended the game.
            episodes: tasks of the split `train`, each a seed.
            returns: the least and greatest sum of an episode's rewards.
            options: of what makes the game.
        """
        self._spaces = library("agentrl.envs.adapters.spaces", EXTRA)
        self._masks = library("agentrl.envs.adapters.masks", EXTRA)
        self.source, self.names, self.digits, self.forfeit = source, tuple(map(str, actions)), digits, forfeit
        self.episodes, self.return_range = episodes, returns
        self._api, self._options, self._mask_name, self._told = api, dict(options), mask, tuple(map(str, info))
        self._about = describe(source, api, options)
        self._renderer = load(renderer, f"env.renderer={renderer!r}") if renderer else None
        self._rendered = observe == "render" or (observe is None and renderer is None and bool(self._about.text_mode))
        self._check_options()
        if self._rendered:
            self._options["render_mode"] = self._about.text_mode
        self.agents, self.simultaneous, self.prompt = self._about.agents, self._about.at_once, prompt
        self._made: ZooGame | None = None
        self._begin()

    def _begin(self) -> None:
        self._said: list[list[str]] = []
        self._opened: set[str] = set()
        self._spoken: set[str] = set()
        self._attempts = dict.fromkeys(self.agents, 0)
        self._awaited: list[str] = []
        self._moves: dict[str, Any] = {}
        self._refused: dict[str, str] = {}
        self._early: dict[str, float] = {}
        self._over = False

    # ------------------------------------------------------------------ the episode

    @property
    def _game(self) -> ZooGame:
        if self._made is None:
            raise EnvError(f"{self.source}: no episode has begun")
        return self._made

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        """Begin a game by the task's seed; what each agent that plays is told, first those whose turn it is."""
        self._begin()
        if self._made is None:
            self._made = make(self.source, self._api, self._options)
        self._game.start(task["seed"])
        self._awaited = list(self._game.awaited)
        if not self._awaited:
            raise EnvError(f"{self.source}: the game is over before anybody's turn (seed {task['seed']})")
        order = [*self._awaited, *(agent for agent in self._game.env.agents if agent not in self._awaited)]
        openings = {agent: self._news(agent) for agent in order}
        return openings if len(self.agents) > 1 else openings[self.agents[0]]

    def step(self, message: Message) -> StepResult:
        """Read the agent's action; where nobody else's is awaited, carry out all of them."""
        agent = message.name or self.agents[0]
        if agent not in self._awaited:
            return StepResult([Message(role="user", content="It is not your turn.")], next=tuple(self._awaited) or None)
        self._said.append([agent, message.text])
        self._spoken.add(agent)
        try:
            self._moves[agent] = self._read(agent, message.text)
            self._attempts[agent] = 0
        except ToolArguments as error:
            self._refused[agent] = str(error)
            self._attempts[agent] += 1
        self._awaited.remove(agent)
        if self._awaited:
            return StepResult()
        refused, self._refused = self._refused, {}
        return self._answer_refused(agent, refused) if refused else self._take(agent)

    def close(self) -> None:
        game, self._made = self._made, None
        if game is not None:
            game.env.close()

    @reward(range=ANY)
    def beside_turns(self, session: Session) -> Mapping[str, float] | float | None:
        """Rewards of agents that had no turn, and the forfeit of one at whose turn a limit ended the game."""
        if self._made is None:
            return None
        given = dict(self._early)
        if not self._over:
            cut = {node.agent for node in session.nodes if node.finish_reason is FinishReason.LENGTH}
            late = cut or (self._awaited if len(self._awaited) < len(self._game.env.agents) else ())
            for agent in late:
                given[agent] = given.get(agent, 0.0) + self.forfeit
        if len(self.agents) == 1:
            return given.get(self.agents[0])
        return given or None

    def demonstrate(self, messages: Sequence[Message], rng: random.Random) -> str:
        agent = self._agent_of(messages)
        space, mask = self._about.actions[agent], self._mask(agent)
        space.seed(rng.randrange(EVAL_SEEDS))
        action = space.sample() if mask is None else self._masks.draw_action(space, mask)
        value = self.names[int(action) - int(space.start)] if self.names else self._spaces.plain(space, action)
        return value if isinstance(value, str) else json.dumps(value)

    def state(self) -> dict[str, Any]:
        return {"said": [list(each) for each in self._said]}

    def restore(self, task: Task, state: Any) -> None:
        self.reset(task)
        for agent, text in state["said"]:
            self.step(Message(role="assistant", content=text, name=agent))

    # ------------------------------------------------------------------ answers

    def _answer_refused(self, last: str, refused: Mapping[str, str]) -> StepResult:
        """Tell those whose text was no allowed action what is; after three in a row the game is over."""
        if forfeited := [agent for agent in refused if self._attempts[agent] == ATTEMPTS]:
            self._over = True
            given = {agent: self.forfeit if agent in forfeited else 0.0 for agent in self._spoken}
            return self._result(last, {}, given, info={"forfeited": forfeited}, terminated=True)
        self._awaited = list(refused)
        return self._result(last, {agent: f"That is not allowed: {why}" for agent, why in refused.items()}, {})

    def _take(self, last: str) -> StepResult:
        moves, self._moves = self._moves, {}
        try:
            earned = self._game.take(moves)
        except Exception as error:
            raise EnvError(f"{self.source}: step raised {type(error).__name__}: {error}") from error
        given = {}
        for agent, number in earned.items():
            if agent not in self._spoken:
                self._early[agent] = self._early.get(agent, 0.0) + number
            elif number or agent in moves:
                given[agent] = number
        for agent in moves:  # what it got before its first turn
            given[agent] = given.get(agent, 0.0) + self._early.pop(agent, 0.0)
        self._awaited = list(self._game.awaited)
        info = {"ended": dict(self._game.ended)} if self._game.ended else {}
        if self._awaited:
            return self._result(last, {agent: self._news(agent) for agent in self._awaited}, given, info)
        self._over = True
        terminated = "terminated" in self._game.ended.values()
        return self._result(last, {}, given, info, terminated=terminated, truncated=not terminated)

    def _result(
        self,
        last: str,
        news: dict[str, str],
        given: dict[str, float],
        info: Mapping[str, Any] | None = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
    ) -> StepResult:
        """Return what `step` returns: texts and rewards by agent; `last` is the one that wrote."""
        messages = {agent: [Message(role="user", content=text)] for agent, text in news.items()}
        return StepResult(
            messages.pop(last, []),
            given.pop(last, None),
            terminated=terminated,
            truncated=truncated,
            info=dict(info or {}),
            others=messages,
            rewards=given,
            next=tuple(self._awaited) or None,
        )

    # ------------------------------------------------------------------ texts

    def _news(self, agent: str) -> str:
        """Return what an agent is told: at first who it is, and at its turn what it observes and may do."""
        lines = []
        if agent not in self._opened:
            self._opened.add(agent)
            lines.append(self._opening(agent))
        if agent in self._awaited:
            lines += self._describe_observation(agent)
        return "\n".join(filter(None, lines))

    def _opening(self, agent: str) -> str:
        prompt = (
            f"Answer with {self._describe_allowed(agent)} and nothing else." if self.prompt is None else self.prompt
        )
        return f"{self._name(agent)}\n{prompt}" if prompt else self._name(agent)

    def _name(self, agent: str) -> str:
        return f"{self.source}. You are {agent} of {', '.join(self.agents)}."

    def _agent_of(self, messages: Sequence[Message]) -> str:
        if len(self._awaited) == 1:
            return self._awaited[0]
        texts = [message.text for message in messages]
        return next(agent for agent in self.agents if any(self._name(agent) in text for text in texts))

    def _describe_observation(self, agent: str) -> list[str]:
        seen, info = self._game.seen(agent)
        lines = [self._view(agent, seen), *self._masks.format_info(info, self._told, self.digits)]
        if (mask := self._mask(agent)) is not None:
            allowed = self._masks.allowed_now(self._about.actions[agent], mask, self.names)
            lines.append(f"Allowed now: {allowed}.")
        return lines

    def _view(self, agent: str, seen: Any) -> str:
        if self._renderer is not None:
            return self._render(seen, agent, self._game.env)
        if self._rendered:
            return _COLOURS.sub("", str(self._game.env.render())).strip("\n")
        parts = self._parts(agent)
        if parts is None:
            return str(self._spaces.text(self._about.observations[agent], seen, self.digits))
        texts = {name: self._spaces.text(part, seen[name], self.digits) for name, part in parts.items()}
        return next(iter(texts.values())) if len(texts) == 1 else "\n".join(f"{k}: {v}" for k, v in texts.items())

    def _parts(self, agent: str) -> Mapping[str, Any] | None:
        """The parts of a Dict observation without the mask, which is told in words; None for another observation."""
        parts = getattr(self._about.observations[agent], "spaces", None)
        if not isinstance(parts, Mapping):
            return None
        return {name: part for name, part in parts.items() if name != self._mask_name}

    # ------------------------------------------------------------------ actions

    def _describe_allowed(self, agent: str) -> str:
        if self.names:
            return f"one of {', '.join(self.names)}"
        return str(self._spaces.describe_space(self._about.actions[agent]))

    def _read(self, agent: str, text: str) -> Any:
        """The action that a text stands for, which is allowed now; a ToolArguments where it is none."""
        space, value = self._about.actions[agent], text.strip()
        if not self.names and self._spaces.schema(space).get("type") != "string":
            try:
                value = read_json(value)
            except ValueError:
                raise ToolArguments(f"action = {show_value(value)}: allowed: {self._describe_allowed(agent)}") from None
        action = self._spaces.read(space, value, self.names)
        if (mask := self._mask(agent)) is not None:
            self._masks.check_allowed(space, mask, action, self.names)
        return action

    def _mask(self, agent: str) -> Any:
        """Return which actions are allowed now; None where the game does not say."""
        space, (seen, info) = self._about.actions[agent], self._game.seen(agent)
        told = self._mask_name in info or (isinstance(seen, Mapping) and self._mask_name in seen)
        if not told or type(space).__name__ not in ("Discrete", "MultiDiscrete"):
            return None
        mask = self._masks.mask_of(self._mask_name, space, info, seen, None)
        return mask if all(part.any() for part in mask) else None

    def _check_options(self) -> None:
        """Raise a ConfigError where options don't fit the game."""
        if self._rendered and not self._about.text_mode:
            raise ConfigError(
                f"env.observe=render: {self.source} has no rendering as text: name a function that writes one "
                "(env.renderer=file.py:function)"
            )
        for agent, space in self._about.actions.items():
            self._spaces.schema(space)
            kind = type(space).__name__
            if self.names and (kind != "Discrete" or len(self.names) != int(space.n)):
                raise ConfigError(
                    f"env.actions={list(self.names)!r}: {agent} has the actions {space}: allowed: a name for each "
                    "action of a Discrete space"
                )
        if self._rendered or self._renderer is not None:
            return
        for agent, space in self._about.observations.items():
            parts = self._parts(agent)
            count = sum(map(self._spaces.numbers, parts.values() if parts is not None else [space]))
            if count > self._spaces.MAX_NUMBERS:
                raise ConfigError(
                    f"{self.source}: an observation has {count} numbers, too many to write: name a function that does "
                    "(env.renderer=file.py:function)"
                )
