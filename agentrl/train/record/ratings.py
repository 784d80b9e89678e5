"""Games against earlier versions (`policies.NAME=past`), and ratings that follow from them.

`matches.jsonl` in the run folder has a line for each step:

    {"step": 12, "games": {"0": 64, "10": 64}, "points": {"0": 49.5, "10": 33.0}}

The learner gets a point where its agents' mean reward is higher than that of the version it met, half a point where it
is equal. Ratings are on Elo's scale, and the first version has 0. They are fitted to all games at once
(Bradley and Terry's model by maximum likelihood; Hunter 2004, doi:10.1214/aos/1079120141), so neither their order nor a
step size matters. The learner between two kept versions counts as the later one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import orjson

from agentrl.errors import ConfigError
from agentrl.train.record.files import append, read_rows
from agentrl.types import Group, Session

NAME = "matches.jsonl"
ROUNDS = 4000
"""The most rounds of the fit; it ends when no rating changes by more than `CLOSE`."""
WORK = 50_000_000
"""Rounds times pairs of versions, at most: a few seconds."""
MOST_PAIRS = 250_000
"""Pairs of steps and versions that met, in a file that is read; a run of 10,000 steps has some 50,000."""
LATEST = 1_000_000_000
"""The latest step, in a file that is read."""
MOST_BYTES = 1 << 26
"""The most bytes of a file that are read."""
CLOSE = 1e-6
ELO = 400 / math.log(10)
"""Points of Elo's scale for each unit of log odds."""


@dataclass
class Matches:
    """The games of a step, by the version that was met."""

    step: int
    games: dict[int, int] = field(default_factory=dict)
    points: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, step: int, policy: str, groups: Iterable[Group]) -> Matches:
        """Return the matches of groups against the versions of a policy."""
        matches = cls(step)
        for found in (result(session, policy) for group in groups for session in group.scored):
            if found is not None:
                version, points = found
                matches.add({version: 1}, {version: points})
        return matches

    def add(self, games: Mapping[int, int], points: Mapping[int, float]) -> None:
        for version, number in games.items():
            self.games[version] = self.games.get(version, 0) + number
            self.points[version] = self.points.get(version, 0.0) + points[version]

    @property
    def win_rates(self) -> dict[int, float]:
        """The learner's points per game."""
        return {version: self.points[version] / games for version, games in sorted(self.games.items())}


def result(session: Session, policy: str) -> tuple[int, float] | None:
    """The version of `policy` that a session met, and the learner's points; None where it met none."""
    prefix = f"{policy}/"
    names = (node.policy for node in session.nodes if node.policy is not None)
    met = next((name.removeprefix(prefix) for name in names if name.startswith(prefix)), None)
    if met is None or not session.agent_rewards or not session.partner_rewards:
        return None
    lead = _mean(session, session.agent_rewards) - _mean(session, session.partner_rewards)
    return int(met), 0.5 * (1 + (lead > 0) - (lead < 0))


def _mean(session: Session, finals: Mapping[str, float | None]) -> float:
    steps = defaultdict[str, float](float)
    for node in session.nodes:
        steps[node.agent] += node.reward or 0.0
    return fmean((final or 0.0) + steps[agent] for agent, final in finals.items())


def write(run: Path, matches: Matches) -> None:
    """Add a step's games to the run's file."""
    append(run / NAME, _line(matches))


def read(run: Path) -> list[Matches]:
    """A run's games, step by step; a torn last line is left out."""
    file = run / NAME
    if file.exists() and file.stat().st_size > MOST_BYTES:
        raise ConfigError(f"{file} has more than {MOST_BYTES:,} bytes: no games of a run take as many")
    found = read_rows(file, _matches)
    if (pairs := sum(len(each.games) for each in found)) > MOST_PAIRS:
        raise ConfigError(f"{file} has {pairs:,} pairs of steps and versions; ratings are fitted to {MOST_PAIRS:,}")
    return found


def _matches(row: Mapping[str, Any]) -> Matches:
    step, games = row["step"], {int(version): number for version, number in row["games"].items()}
    points = {int(version): float(number) for version, number in row["points"].items()}
    if type(step) is not int or step < 1 or any(type(number) is not int for number in games.values()):
        raise ValueError("a step, or a number of games, is no whole number from 1 on")
    if max((step, *games)) > LATEST or min((0, *games)) < 0:
        raise ValueError(f"step {step} has a version or a step that is not between 0 and {LATEST:,}")
    if points.keys() != games.keys() or not all(0 <= points[version] <= games[version] for version in games):
        raise ValueError(f"step {step} has points that are not between 0 and the games")
    return Matches(step, games, points)


def _line(matches: Matches) -> bytes:
    row = {"step": matches.step, "games": matches.games, "points": matches.points}
    return orjson.dumps(row, option=orjson.OPT_NON_STR_KEYS) + b"\n"


def learner(step: int, every: int) -> int:
    """The version that the learner of a step (from 1) counts as."""
    return math.ceil(step / every) * every


def ratings(matches: Sequence[Matches], every: int) -> dict[int, float]:
    """The rating of each version, the first one's 0, in points of Elo's scale: 400 are odds of 10 to 1.

    Each version is given one more drawn game against the first, without which one that never lost had no finite rating.
    """
    points: dict[tuple[int, int], float] = defaultdict(float)
    for each in matches:
        own = learner(each.step, every)
        for version, games in each.games.items():
            if version != own:
                points[own, version] += each.points[version]
                points[version, own] += games - each.points[version]
    for version in {version for pair in points for version in pair if version}:
        points[version, 0] += 0.5
        points[0, version] += 0.5
    return _fit(points)


def _fit(points: Mapping[tuple[int, int], float]) -> dict[int, float]:
    """Maximum-likelihood ratings by Hunter's iteration: strength = points / sum of games / (own + other's strength).

    Args:
        points: of each version in its games against another; both orders of a pair have an entry.
    """
    import numpy as np  # which an evaluation over an API needs for nothing else

    versions = sorted({0, *(version for pair in points for version in pair)})
    place = {version: index for index, version in enumerate(versions)}
    one_P, other_P = (np.array([place[pair[side]] for pair in points], dtype=np.int64) for side in (0, 1))
    points_P = np.array([*points.values()])
    games_P = points_P + np.array([points[other, one] for one, other in points])
    won_V = np.bincount(one_P, points_P, len(versions))
    strength_V, found_V = np.ones(len(versions)), np.zeros(len(versions))
    for _ in range(min(ROUNDS, WORK // len(points)) if points else 0):
        expected_V = np.bincount(one_P, games_P / (strength_V[one_P] + strength_V[other_P]), len(versions))
        strength_V = won_V / expected_V
        strength_V /= strength_V[0]
        before_V, found_V = found_V, ELO * np.log(strength_V)
        if np.abs(found_V - before_V).max() < CLOSE:
            break
    return dict(zip(versions, found_V.tolist(), strict=True))


def record(run: Path, step: int, policy: str, every: int, groups: Iterable[Group]) -> dict[str, float]:
    """Write a step's games, and return its metrics: the learner's win rates, and its rating where a version is kept."""
    matches = Matches.of(step, policy, groups)
    write(run, matches)
    metrics = {f"win_rate/{policy}/{version}": rate for version, rate in matches.win_rates.items()}
    if step % every == 0:
        metrics["elo/learner"] = ratings(read(run), every).get(step, 0.0)
    return metrics


def rows(matches: Sequence[Matches], every: int) -> list[tuple[str, str, str]]:
    """Return a table's rows: the learner's steps, its rating, and its win rate against each version that it met."""
    rated, own = ratings(matches, every), defaultdict[int, list[Matches]](list)
    for each in matches:
        own[learner(each.step, every)].append(each)
    found = [("first version", f"{0:+.0f}", "")]
    for version, steps in sorted(own.items()):
        whole = Matches(version)
        for each in steps:
            whole.add(each.games, each.points)
        against = ", ".join(f"{met}: {rate:.2f} of {whole.games[met]}" for met, rate in whole.win_rates.items())
        found.append((f"steps {steps[0].step} to {steps[-1].step}", f"{rated.get(version, 0.0):+.0f}", against))
    return found
