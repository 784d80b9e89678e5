"""Ratings against earlier versions: what counts as won, what the fit gives, and what the file keeps."""

from __future__ import annotations

import math
from pathlib import Path

import orjson
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.errors import ConfigError
from agentrl.sessions.tree import tree
from agentrl.train.record import ratings
from agentrl.train.record.files import keep_lines
from agentrl.train.record.ratings import Matches
from agentrl.types import FinishReason, Group, Message, Sampling, Session, Status, Task, Turn
from agentrl.types import VersionSpan as Span


def game(mine: float | None, theirs: float | None, *, step: float = 0.0, opponent: str = "old/3") -> Session:
    """A session whose opponent was rewarded with `theirs`, and whose learner with `mine` and a step's reward."""
    made = Session("s", Task(id="t"), status=Status.COMPLETED, agent_rewards={"a": mine}, partner_rewards={"b": theirs})
    for agent, policy in (("a", "main"), ("b", opponent)):
        root = tree.add(made, None, Message(role="user", content="go"), [1], agent=agent)
        turn = Turn((3,), (-0.5,), (Span(0, 0, 1),), FinishReason.STOP)
        said = Message(role="assistant", content="x")
        node = tree.add_turn(
            made, root.id, [5], turn, Sampling(), said, agent=agent, policy=policy, trained=agent == "a"
        )
        node.reward = step if agent == "a" else None
    return made


@pytest.mark.parametrize(
    ("session", "points"),
    [
        (game(1.0, 0.0), (3, 1.0)),
        (game(0.0, 1.0), (3, 0.0)),
        (game(0.5, 0.5), (3, 0.5)),
        (game(0.0, 0.5, step=0.75), (3, 1.0)),
        (game(None, None, step=-0.1), (3, 0.0)),
        (game(1.0, 0.0, opponent="main"), None),
        (game(1.0, 0.0, opponent="older/3"), None),
    ],
)
def test_a_game_is_won_by_who_has_more_reward(session: Session, points: tuple[int, float] | None) -> None:
    assert ratings.result(session, "old") == points


def test_a_steps_games_are_counted_by_the_version_that_was_met() -> None:
    groups = [Group("g", Task(id="t"), [game(1.0, 0.0), game(0.0, 1.0), game(0.5, 0.5, opponent="old/0")])]
    matches = Matches.of(7, "old", groups)
    assert (matches.games, matches.points) == ({3: 2, 0: 1}, {3: 1.0, 0: 0.5})
    assert matches.win_rates == {0: 0.5, 3: 0.5}


@given(won=st.integers(0, 500), lost=st.integers(0, 500))
def test_the_rating_of_a_single_pairing_is_the_log_of_its_odds(won: int, lost: int) -> None:
    if won + lost:
        found = ratings.ratings([Matches(4, {0: won + lost}, {0: float(won)})], every=5)
        expected = 400 * math.log10((won + 0.5) / (lost + 0.5))  # with the drawn game that everybody is given
        assert found == {0: 0.0, 5: pytest.approx(expected, abs=0.01)}


@pytest.mark.slow
@given(
    games=st.lists(
        st.integers(1, 6).flatmap(
            lambda step: st.tuples(st.just(step), st.integers(0, (step - 1) // 2), st.integers(0, 9), st.integers(1, 9))
        ),
        min_size=1,
        max_size=8,
    ),
    data=st.data(),
)
def test_expected_points_are_the_points_that_were_made_whatever_the_order(
    games: list[tuple[int, int, int, int]], data: st.DataObject
) -> None:
    """The likelihood's own condition at its maximum (Hunter 2004), which no step of the fit uses in this form."""
    matches = [Matches(step, {2 * met: won + lost}, {2 * met: float(won)}) for step, met, won, lost in games]
    found = ratings.ratings(matches, every=2)
    assert found[0] == 0
    shuffled = ratings.ratings(data.draw(st.permutations(matches)), every=2)
    assert shuffled == {version: pytest.approx(rating, abs=1.0) for version, rating in found.items()}

    def chance(mine: int, other: int) -> float:
        return float(1 / (1 + 10 ** ((found[other] - found[mine]) / 400)))

    for version in found:
        made = expected = 0.0
        pairings = [(ratings.learner(m.step, 2), met, m.points[met], n) for m in matches for met, n in m.games.items()]
        pairings += [(other, 0, 0.5, 1) for other in found if other]
        for own, met, points, number in pairings:
            if version == own:
                made, expected = made + points, expected + number * chance(own, met)
            elif version == met:
                made, expected = made + number - points, expected + number * chance(met, own)
        assert expected == pytest.approx(made, abs=0.05)


def test_a_resumed_run_drops_the_games_of_later_steps_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    for step in range(1, 5):
        ratings.write(tmp_path, Matches(step, {0: 4, 2: 1}, {0: 2.5, 2: 1.0}))
    with (tmp_path / ratings.NAME).open("ab") as file:
        file.write(b'{"step": 5, "ga')
    assert [each.step for each in ratings.read(tmp_path)] == [1, 2, 3, 4]
    keep_lines(tmp_path / ratings.NAME, 2)
    assert ratings.read(tmp_path) == [Matches(step, {0: 4, 2: 1}, {0: 2.5, 2: 1.0}) for step in (1, 2)]
    (tmp_path / ratings.NAME).write_text('{"step": 1}\n')
    with pytest.raises(ConfigError, match=r"matches\.jsonl is damaged"):
        ratings.read(tmp_path)


def test_the_table_has_the_learners_steps_by_the_version_that_they_count_as() -> None:
    matches = [Matches(1, {0: 4}, {0: 2.0}), Matches(2, {0: 4}, {0: 4.0}), Matches(3, {0: 2, 2: 2}, {0: 2.0, 2: 1.0})]
    first, second, third = ratings.rows(matches, every=2)
    assert first == ("first version", "+0", "")
    assert (second[0], second[2]) == ("steps 1 to 2", "0: 0.75 of 8")
    assert (third[0], third[2]) == ("steps 3 to 3", "0: 1.00 of 2, 2: 0.50 of 2")
    assert int(second[1]) > 0


@pytest.mark.slow
def test_the_command_prints_the_table_of_a_run_and_says_where_there_is_none(tmp_path: Path) -> None:
    shown = CliRunner(env={"COLUMNS": "200"})
    missing = shown.invoke(app, ["ratings", str(tmp_path)])
    assert isinstance(missing.exception, ConfigError)
    assert "no run there" in str(missing.exception)
    settings = {"env": "kuhn_poker", "agents": {"second": "old"}, "policies": {"old": "past"}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    ratings.write(tmp_path, Matches(1, {0: 4}, {0: 3.0}))
    result = shown.invoke(app, ["ratings", str(tmp_path)])
    assert result.exit_code == 0
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"env": "kuhn_poker"}))
    alone = shown.invoke(app, ["ratings", str(tmp_path)])
    assert "plays against no earlier version of itself" in str(alone.exception)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ('{"step": 1, "games": {"0": 1, "9000000000": 1}, "points": {"0": 1, "9000000000": 0}}', "1,000,000,000"),
        ('{"step": 9000000000, "games": {"0": 1}, "points": {"0": 1}}', "1,000,000,000"),
        ('{"step": 1, "games": {"-3": 1}, "points": {"-3": 1}}', "1,000,000,000"),
    ],
)
def test_games_that_no_run_has_are_refused_by_name(rows: str, words: str, tmp_path: Path) -> None:
    (tmp_path / ratings.NAME).write_text(rows + "\n")
    with pytest.raises(ConfigError, match=rf"matches\.jsonl.*{words}"):
        ratings.read(tmp_path)


def test_more_games_than_any_run_has_are_refused_unfitted_and_a_larger_file_is_not_read(tmp_path: Path) -> None:
    """A stranger's file with 100,000 versions was fitted for hours."""
    file, games = tmp_path / ratings.NAME, {str(version): 1 for version in range(ratings.MOST_PAIRS + 1)}
    file.write_bytes(orjson.dumps({"step": 1, "games": games, "points": games}) + b"\n")
    with pytest.raises(ConfigError, match=r"matches\.jsonl has 250,001 pairs"):
        ratings.read(tmp_path)
    with open(file, "r+b") as grown:
        grown.truncate(ratings.MOST_BYTES + 1)
    with pytest.raises(ConfigError, match=r"matches\.jsonl has more than 67,108,864 bytes"):
        ratings.read(tmp_path)


@pytest.mark.slow
@given(
    games=st.dictionaries(st.tuples(st.integers(1, 12), st.integers(0, 12)), st.integers(0, 2**62), max_size=30),
    every=st.integers(1, 3),
)
def test_whatever_the_results_a_fit_ends_with_finite_ratings(games: dict[tuple[int, int], int], every: int) -> None:
    matches = [Matches(step, {met: number}, {met: float(number * (step % 2))}) for (step, met), number in games.items()]
    assert all(math.isfinite(rating) for rating in ratings.ratings(matches, every).values())
