"""A stored session is played again, up to where a person goes another way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentrl.envs import calls
from agentrl.envs.episode import play, record
from agentrl.envs.play import game_of, play_in_terminal
from agentrl.envs.recorded_turns import RecordedTurns
from agentrl.envs.registry import make
from agentrl.errors import AgentRLError, ConfigError
from agentrl.sessions.store.store import Store
from agentrl.types import Message, Node, Session, Task


def kept(folder: Path, name: str, answer: str = "") -> Session:
    """A session of the environment's expert, in a store like a run's; `answer`: what its first tool had answered."""
    folder.mkdir()
    env = make(name)
    session = asyncio.run(play(env, next(calls.tasks(env, env.splits[0])), seed=5))
    if answer:
        next(node for node in session.nodes if node.message.role == "tool").message.content = answer
    with Store(folder / "sessions.db") as store:
        store.save(session)
    return session


def again(folder: Path, name: str, session: Session, lines: list[str]) -> tuple[Session, list[str]]:
    """What comes of it when a person writes these lines, and what was shown."""
    shown: list[str] = []
    typed = iter(lines)
    game = game_of({"env": name, "from": str(folder), "session": session.id, "run_dir": str(folder.parent / "again")})
    return play_in_terminal(game, shown.extend, lambda prompt: next(typed)), shown


@pytest.mark.parametrize("name", ["castle", "kuhn_poker"])
@pytest.mark.parametrize("rest", [False, True])
@pytest.mark.slow
def test_a_session_is_played_again_turn_by_turn_to_the_same_end(name: str, rest: bool, tmp_path: Path) -> None:
    """Also of several agents: the others' turns are the recorded ones."""
    first = kept(tmp_path / "first", name)
    lines = ["", ":rest"] if rest and name == "castle" else [""] * first.turns
    second, shown = again(tmp_path / "first", name, first, lines)
    assert record(second) == record(first)
    assert (second.task, second.seed) == (first.task, first.seed)
    assert not [line for line in shown if "recorded was" in line]


def test_a_message_of_ones_own_leaves_the_record(tmp_path: Path) -> None:
    first = kept(tmp_path / "first", "calculator")
    second, _ = again(tmp_path / "first", "calculator", first, ["", "no idea"])
    assert [m.text for m in second.messages if m.role == "assistant"][-1] == "no idea"
    assert second.messages[:2] == first.messages[:2]
    assert second.reward == 0.0


def test_what_the_environment_answers_otherwise_is_shown(tmp_path: Path) -> None:
    first = kept(tmp_path / "first", "calculator", answer="41")
    _, shown = again(tmp_path / "first", "calculator", first, [":rest"])
    assert "    recorded was: [tool] 41" in shown


def test_a_path_that_began_anew_is_followed() -> None:
    said = [
        Message(role="user", content="a"),
        Message(role="assistant", content="b"),
        Message(role="user", content="c"),
    ]
    session = Session(id="s", task=Task(id="t"))

    def add(message: Message, parent: int | None) -> None:
        session.nodes.append(Node(len(session.nodes), parent, message, [], [], []))

    add(said[0], None)
    add(said[1], 0)
    add(said[2], None)
    add(Message(role="assistant", content="d"), 2)
    turns = RecordedTurns(session)
    assert turns.turn("agent", said[:1]) == said[1]
    assert turns.turn("agent", [said[2]]) == session.nodes[3].message
    turns.over = True
    assert turns.turn("agent", [said[2]]) is None


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"from": "."}, "from=RUN_FOLDER and session=ID go together"),
        ({"from": "nowhere", "session": "x"}, "from=nowhere: there is no sessions.db"),
        ({"from": "first", "session": "play-x"}, "unknown session 'play-x' (known: play-train-0"),
        ({"from": "first", "session": "x", "seed": 3}, "seed=3: a session that is played again has its own"),
    ],
)
def test_what_can_not_be_played_again_is_named(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    kept(tmp_path / "first", "calculator")
    with pytest.raises(AgentRLError) as caught:
        game_of({"env": "calculator", **settings})
    assert words in str(caught.value)


def test_a_session_that_was_forked_is_refused() -> None:
    session = Session(id="s", task=Task(id="t"), branches=[None])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="was forked"):
        RecordedTurns(session)
