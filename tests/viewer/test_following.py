"""`agentrl sessions RUN --follow`: every message of sessions under way once, in order, and how each ended."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agentrl.sessions.store.store import Store
from agentrl.types import Message, Node, Session, Status, Task
from agentrl.viewer.following import TEXT, Follower
from agentrl.viewer.runs import run_at
from tests.command_line import run_agentrl
from tests.viewer.recorded import HOSTILE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("{}")
    Store(tmp_path / "sessions.db").close()
    return tmp_path


def node(number: int, role: str, text: str) -> Node:
    return Node(number, number - 1 if number else None, Message(role=role, content=text), [], [], [])


def session(name: str, *texts: str, status: Status = Status.OPEN, task: str = "t") -> Session:
    nodes = [node(n, "assistant" if n % 2 else "user", text) for n, text in enumerate(texts)]
    ended = {} if status is Status.OPEN else {"ended": time.time(), "rewards": {"right": 1.0}, "reward": 1.0}
    return Session(name, Task(id=task), nodes=nodes, status=status, started=time.time(), **ended)


def test_each_message_is_shown_once_and_then_how_its_session_ended(folder: Path):
    with Store(folder / "sessions.db") as store:
        store.save(session("before", "old", status=Status.COMPLETED))
        store.save(session("a", "hello"))
        follower = Follower(run_at(folder), {})
        assert follower.begin() == 1
        assert list(follower.look()) == []
        store.save(session("a", "hello", "hi"))
        store.save(session("b", "one"))
        assert list(follower.look()) == ["a  agent: hi", "b  user: one"]
        store.save(session("a", "hello", "hi", "bye", status=Status.COMPLETED))
        store.save(session("quick", "all", "at once", status=Status.COMPLETED))
        assert list(follower.look()) == [
            "a  user: bye",
            "a  completed, score 1, 1 turns, 0 tokens",
            "quick  user: all",
            "quick  agent: at once",
            "quick  completed, score 1, 1 turns, 0 tokens",
        ]
        assert list(follower.look()) == []


def test_only_sessions_that_fit_are_followed_and_no_message_commands_a_terminal_or_fills_it(folder: Path):
    with Store(folder / "sessions.db") as store:
        follower = Follower(run_at(folder), {"task": "t"})
        follower.begin()
        store.save(session("other", "hello", task="u"))
        store.save(session("a", f"{HOSTILE}\n{'x' * 2 * TEXT}"))
        (line,) = follower.look()
    assert line.startswith("a  user: ")
    assert line.isprintable()
    assert len(line) < 2 * TEXT


def test_the_command_ends_where_no_run_is_under_way(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert run_agentrl("sessions", folder, "--follow", "task=t") == 0
    assert capsys.readouterr().out.splitlines() == [f"{folder.name}: 0 sessions under way", f"{folder.name}: stopped"]


def test_what_is_followed_depends_on_no_clock_and_on_no_session_that_ended_before(folder: Path):
    """Sessions were found by the time of their end: a clock that was set back showed an hour of them again, or none."""
    with Store(folder / "sessions.db") as store:
        store.save(session("before", "old", status=Status.COMPLETED))
        store.save(session("a", "hello"))
        follower = Follower(run_at(folder), {"status": "completed"})
        assert follower.begin() == 1
        early = session("a", "hello", "hi", status=Status.COMPLETED)
        early.ended = 5.0
        store.save(early)
        late = session("b", "one", status=Status.COMPLETED)
        late.ended = 4e9
        store.save(late)
        store.save(session("cut", "two", status=Status.TRUNCATED))
        ends = [line for line in follower.look() if "score" in line]
        assert ends == ["a  completed, score 1, 1 turns, 0 tokens", "b  completed, score 1, 0 turns, 0 tokens"]
        assert list(follower.look()) == []
        store.delete("b")
        store.save(session("b", "again", status=Status.COMPLETED))
        store.save(session("c", "last", status=Status.COMPLETED))
        assert "c  user: last" in list(follower.look())
