"""What other rewards say of the same sessions: means, ranks, flips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import fmean
from typing import Any

from agentrl.common.untrusted import visible_text
from agentrl.rollout.stream.statistics import ROUNDING

SHOWN = 10
"""Sessions whose score changed most, that are named."""


@dataclass(frozen=True, slots=True)
class SessionScores:
    """A session's score before and after.

    Attributes:
        session: its id.
        group: of which sessions are compared with each other.
        before: the recorded score.
        after: the new one.
    """

    session: str
    group: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class ScoreChanges:
    """The changes over all sessions with a score in both.

    Attributes:
        sessions: how many these are.
        before: the mean of the recorded scores; so is `after` of the new ones.
        rank_correlation: Spearman's, over all sessions; None where all scores of one side are equal.
        within_groups: Kendall's tau-b over the pairs of sessions of a group, which advantages come from.
        pairs: the pairs of sessions of a group that one of both tells apart.
        flipped: those of them whose order is the other way round.
        solved: sessions that were not solved and are now; so is `lost` the other way round.
        largest: the sessions that changed most, the largest change first.
    """

    sessions: int
    before: float | None
    after: float | None
    rank_correlation: float | None
    within_groups: float | None
    pairs: int
    flipped: int
    solved: int
    lost: int
    largest: Sequence[SessionScores]

    def json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return them in words."""
        if not self.sessions:
            return ["no session has a score in both"]
        lines = [
            f"{self.sessions} sessions: mean {_shown(self.before)} before, {_shown(self.after)} now",
            f"rank correlation {_shown(self.rank_correlation)} (Spearman, over all), "
            f"{_shown(self.within_groups)} (Kendall, within groups)",
            f"{self.flipped} of {self.pairs} pairs of a group are in the other order",
            f"solved now and not before: {self.solved}; before and not now: {self.lost}",
        ]
        named = [f"  {visible_text(each.session, keep='')}: {each.before:g} -> {each.after:g}" for each in self.largest]
        return lines + named


def compare_scores(changes: Sequence[SessionScores], solved_at: float = 1.0) -> ScoreChanges:
    """Return what changed; `solved_at` is the score from which on a session has solved its task."""
    groups: dict[str, list[SessionScores]] = {}
    for change in changes:
        groups.setdefault(change.group, []).append(change)
    signs = [
        (_sign(one.before - other.before), _sign(one.after - other.after))
        for members in groups.values()
        for one, other in combinations(members, 2)
    ]
    least = solved_at - ROUNDING
    moved = sorted(changes, key=lambda each: (-abs(each.after - each.before), each.session))
    return ScoreChanges(
        sessions=len(changes),
        before=fmean(each.before for each in changes) if changes else None,
        after=fmean(each.after for each in changes) if changes else None,
        rank_correlation=spearman([each.before for each in changes], [each.after for each in changes]),
        within_groups=_tau(signs),
        pairs=sum(one != 0 or other != 0 for one, other in signs),
        flipped=sum(one * other < 0 for one, other in signs),
        solved=sum(each.before < least <= each.after for each in changes),
        lost=sum(each.after < least <= each.before for each in changes),
        largest=[each for each in moved[:SHOWN] if abs(each.after - each.before) > ROUNDING],
    )


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the correlation of two rankings, equal values sharing the mean of their ranks; None without variance.

    Spearman, "The proof and measurement of association between two things", 1904.
    """
    a, b = _ranks(one), _ranks(other)
    mean = (len(a) + 1) / 2
    a, b = [each - mean for each in a], [each - mean for each in b]
    spread = (sum(each * each for each in a) * sum(each * each for each in b)) ** 0.5
    return sum(x * y for x, y in zip(a, b, strict=True)) / spread if spread else None


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for place in order[start:end]:
            ranks[place] = (start + end + 1) / 2
        start = end
    return ranks


def _tau(signs: Sequence[tuple[int, int]]) -> float | None:
    """Kendall's tau-b of pairs that each side orders (1, -1) or does not (0)."""
    first, second = sum(one != 0 for one, _ in signs), sum(other != 0 for _, other in signs)
    spread = (first * second) ** 0.5
    return sum(one * other for one, other in signs) / spread if spread else None


def _sign(difference: float) -> int:
    return 0 if abs(difference) <= ROUNDING else 1 if difference > 0 else -1


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
