"""Legal moves of TextArena's games, which a warm start imitates: what the game showed, tried on a copy of it.

The games have no list of legal moves in common. All say in their own text what a move looks like, in brackets: moves
are drawn from there, with other numbers and letters where the ones that are shown are taken, and one is legal if the
game, in a copy, does not refuse it. Only whether a move is refused is looked at, so nothing hidden is told.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

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


class _Refused(Exception):
    """The game takes it for no move."""


def legal_move(game: Any, shown: Sequence[str], rng: random.Random) -> str:
    """A move that a game of TextArena does not refuse; `FREE` where none is found.

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
