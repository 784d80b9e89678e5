"""`env=textarena:TicTacToe-v0`: TextArena's games, for one player or for several that take turns.

Players are agents, each with a conversation of its own: what the game shows a player is sent before its next turn. A
turn's text is the action. The game's own rewards, from -1 to 1, are each player's final reward, also of one that the
game ended before its first turn. Where a limit ends the game, the player whose turn it was has lost.

TextArena's games draw from Python's global random generator. Here each episode has a state of that generator to
itself, set for the length of a call, so that episodes of one process don't change each other.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from agentrl.envs.adapters import library
from agentrl.envs.adapters.seeded import SeededEnv
from agentrl.envs.base import reward
from agentrl.envs.reward_marks import ANY
from agentrl.errors import ConfigError, unknown_name
from agentrl.types import AGENT, Message, Session, StepResult, Task

EXTRA = "textarena"
MAX_PLAYERS = 16
RESOURCE = re.compile(r"nltk\.download\(\S*?'([\w-]+)'")
"""In NLTK's error: the name of what is missing."""
LOST = -1.0
"""The reward that the games give a player that makes no valid move."""
SHOWN = re.compile(r"\[[^\[\]\n]{1,60}\]")
SENDER = re.compile(r"^\[[^\[\]\n]*\] ", re.MULTILINE)
"""Before each line that somebody sent."""
PART = re.compile(r"[a-h](?=\d)|(?<=[a-h])\d|\d+|\b[A-Za-z]\b")
"""The parts that are drawn anew in a move that was shown: a square's letter, its digit, a number, a letter by
itself."""
DRAWN = 300
"""Moves with other numbers and letters that are tried."""
FREE = "I agree."
"""Tried last: where a game takes any text, this is one."""


class TextArena(SeededEnv):
    """A game of TextArena, as in env=textarena:TicTacToe-v0; see docs/adapters.md."""

    def __init__(self, source: str, players: int | None = None, episodes: int = 1000, **options: Any) -> None:
        """Make a game.

        Args:
            source: its id, as textarena.make takes it.
            players: how many play; by default the fewest that the game takes.
            episodes: tasks of the split `train`, each a seed.
            options: of textarena.make.
        """
        self.source, self.episodes, self._options = source, episodes, dict(options)
        count = _players(source, tuple(sorted(options.items())), players)
        self.agents = (AGENT,) if count == 1 else tuple(f"player_{number}" for number in range(count))
        self._game: Any = None
        self._taken: list[str] = []
        self._random: Any = None
        self._rewards: Mapping[int, float | None] | None = None

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        """Begin a game; each player's opening, beginning with the one whose turn it is."""
        self._taken, self._rewards = [], None
        self._random = random.Random(task["seed"]).getstate()
        with self._own_random():
            self._game = _make(self.source, self._options)
            self._game.reset(num_players=len(self.agents), seed=task["seed"])
        first = self._player
        order = [(first + offset) % len(self.agents) for offset in range(len(self.agents))]
        openings = {self.agents[player]: self._news(player) or self.source for player in order}
        return openings if len(self.agents) > 1 else openings[AGENT]

    def step(self, message: Message) -> StepResult:
        player = self._player
        self._taken.append(message.text)
        with self._own_random():
            over, _ = self._game.step(message.text)
        if over:
            self._rewards = self._game.close()[0] or {}
            return StepResult(terminated=True)
        return self._turn(player, self._player)

    @reward(range=ANY)
    def game(self, session: Session) -> Mapping[str, float] | float | None:
        """The game's reward of each player; where a limit ended it, who did not move has lost, and nobody has won."""
        if self._game is None:
            return None
        given = {self._player: LOST} if self._rewards is None else self._rewards
        each = {agent: given.get(player) or 0.0 for player, agent in enumerate(self.agents)}
        return each if len(each) > 1 else each[AGENT]

    def demonstrate(self, messages: Sequence[Message], rng: random.Random) -> Message:
        shown = [message.text for message in messages if message.role == "user"]
        with self._own_random(keep=False):
            return Message(role="assistant", content=legal_move(self._game, shown, rng))

    def state(self) -> dict[str, Any]:
        return {"actions": list(self._taken)}

    def restore(self, task: Task, state: Any) -> None:
        self.reset(task)
        for text in state["actions"]:
            self.step(Message(role="assistant", content=text))

    def _turn(self, player: int, following: int) -> StepResult:
        news = [Message(role="user", content=self._news(following) or "It is your turn.")]
        if following == player:
            return StepResult(news, next=None if len(self.agents) == 1 else self.agents[player])
        return StepResult(others={self.agents[following]: news}, next=self.agents[following])

    def _news(self, player: int) -> str:
        """Return what the game has shown a player since its last turn, without its own action."""
        board = state(self._game)
        shown, board.observations[player] = board.observations[player], []
        kinds = library("textarena", EXTRA).core.ObservationType
        lines = []
        for sender, text, kind in shown:
            if kind is kinds.PROMPT:
                lines.append(text)
            elif not (sender == player and kind is kinds.PLAYER_ACTION):
                lines.append(f"[{board.role_mapping.get(sender, f'Player {sender}')}] {text}")
        return "\n".join(lines).strip()

    @property
    def _player(self) -> int:
        return int(state(self._game).current_player_id)

    @contextmanager
    def _own_random(self, *, keep: bool = True) -> Iterator[None]:
        """Let the block draw from the episode's generator; `keep`: whether the episode's then goes on from there."""
        before = random.getstate()
        random.setstate(self._random)
        try:
            yield
        finally:
            self._random = random.getstate() if keep else self._random
            random.setstate(before)


def _make(source: str, options: dict[str, Any]) -> Any:
    textarena = library("textarena", EXTRA)
    if source not in textarena.envs.registration.ENV_REGISTRY:
        raise unknown_name("game of TextArena", source, _families(textarena.envs.registration.ENV_REGISTRY, source))
    try:
        with _no_downloads():
            return textarena.make(source, **options)
    except LookupError as error:
        if not (lists := RESOURCE.findall(str(error))):
            raise
        raise ConfigError(
            f"env=textarena:{source} needs word lists of NLTK that are not on this machine, and a run fetches none: "
            f"python -m nltk.downloader {' '.join(lists)}"
        ) from None
    except (TypeError, ImportError) as error:
        raise ConfigError(f"env=textarena:{source}: {error}") from error


@contextmanager
def _no_downloads() -> Iterator[None]:
    """Games of words download lists when they are imported and made, which may hang: here they do without."""
    nltk: Any = library("nltk", EXTRA)
    download, nltk.download = nltk.download, lambda *_, **__: False
    try:
        yield
    finally:
        nltk.download = download


def _families(known: Any, source: str) -> list[str]:
    """Ids without the many variants of other games than the one that was meant."""
    return [name for name in known if name.count("-") == 1 or name.startswith(source.partition("-")[0])]


@lru_cache(maxsize=64)
def _players(source: str, options: tuple[tuple[str, Any], ...], wanted: int | None) -> int:
    """Return how many play: as many as are wanted, or the fewest that the game takes."""
    before, refusal = random.getstate(), ""
    try:
        for players in range(1, MAX_PLAYERS + 1) if wanted is None else (wanted,):
            try:
                _make(source, dict(options)).reset(num_players=players, seed=0)
            except AssertionError as error:
                refusal = str(error)
            else:
                return players
    finally:
        random.setstate(before)
    raise ConfigError(f"env=textarena:{source} env.players={wanted}: {refusal or 'not a number of players it takes'}")


class _Refused(Exception):
    """The game takes it for no move."""


def legal_move(game: Any, shown: Sequence[str], rng: random.Random) -> str:
    """A move that a game of TextArena does not refuse; `FREE` where none is found. A warm start imitates such moves.

    The games have no list of legal moves in common. All say in their own text what a move looks like, in brackets:
    moves are drawn from there, with other numbers and letters where the ones that are shown are taken, and one is legal
    if the game, in a copy, does not refuse it. Only whether it is refused is looked at, so nothing hidden is told.

    Args:
        game: the game, at the turn of the player; it is not changed. It may draw from Python's global generator.
        shown: what the player was shown, oldest first.
        rng: draws among the moves.
    """
    for move in _candidates(shown, rng):
        trial = copy.deepcopy(game)
        state(trial).set_invalid_move = _refuse
        try:
            trial.step(move)
        except Exception:  # refused, or a move at which the game itself fails
            continue
        return move
    return FREE


def state(game: Any) -> Any:
    """A game's state, below its wrappers."""
    while hasattr(game, "env"):
        game = game.env
    return game.state


def _candidates(shown: Sequence[str], rng: random.Random) -> Iterator[str]:
    shown = [SENDER.sub("", text) for text in shown]
    newest = SHOWN.findall(shown[-1]) if shown else []
    earlier = [move for text in shown[:-1] for move in SHOWN.findall(text)]
    for moves in (newest, earlier):
        moves = list(dict.fromkeys(moves))
        yield from rng.sample(moves, len(moves))
    moves = list(dict.fromkeys(move for move in [*earlier, *newest] if PART.search(move)))
    for _ in range(DRAWN if moves else 0):
        reach = rng.choice((1, 3))
        yield PART.sub(lambda part: _another(part[0], reach, rng), rng.choice(moves))  # noqa: B023  called at once
    yield FREE


def _another(part: str, reach: int, rng: random.Random) -> str:
    if part.isdigit():
        return str(rng.randint(0, reach * max(9, 2 * int(part))))
    letters = "abcdefgh" if part in "abcdefgh" else "abcdefghijklmnopqrstuvwxyz"
    return rng.choice(letters.upper() if part.isupper() else letters)


def _refuse(*_: Any, **__: Any) -> None:
    raise _Refused
