"""A person plays an episode in the terminal, and the session is kept where the viewer finds it."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agentrl.envs.data.lines import call_of, signature
from agentrl.envs.play import Person, game_of
from agentrl.envs.registry import make
from agentrl.errors import AgentRLError, ConfigError, UnknownName
from agentrl.sessions.store.store import Store
from agentrl.types import Message, Session, Status
from agentrl.viewer.runs import Runs
from tests.envs.check.honest_envs import Async

COMMAND = [sys.executable, "-m", "agentrl", "play", "env=calculator"]
SECONDS = 120.0
"""For a process on a busy machine."""


def piped(folder: Path, text: str, *words: str) -> tuple[str, Session]:
    """What a session of these lines prints, and the session as it was stored."""
    done = subprocess.run(
        [*COMMAND, *words, f"run_dir={folder}"], input=text, text=True, capture_output=True, timeout=SECONDS, check=True
    )
    return done.stdout, stored(folder)


def stored(folder: Path) -> Session:
    with Store(folder / "sessions.db", read_only=True) as store:
        return store.load(store.ids()[-1])


async def test_a_path_that_begins_anew_is_shown_whole():
    """After a compaction (`StepResult.fresh`) a person saw nothing of what the agent was told."""
    lines: list[str] = []
    person, env = Person("agent", lines.extend, lambda prompt: "said"), make("calculator")
    path = [Message(role="user", content="opening")]
    path.append(await person(env, path))
    path.append(Message(role="user", content="more"))
    path.append(await person(env, path))
    fresh = [Message(role="system", content="rules"), Message(role="user", content="notes")]
    fresh.append(await person(env, fresh))
    person.show_new([*fresh, Message(role="user", content="the end")])
    shown = [line for line in lines if line.startswith("[")]
    assert shown == ["[user] opening", "[user] more", "[system] rules", "[user] notes", "[user] the end"]


@pytest.mark.slow
def test_lines_of_a_pipe_play_an_episode_that_the_viewer_lists(tmp_path: Path):
    folder = tmp_path / "played"
    text, session = piped(
        folder, "/nothing 1\n:tools\n/calculator 12*7\n:expert\nI say \\\n69\n", "task=eval-0-1", "split=eval"
    )
    assert "unknown tool 'nothing'" in text
    assert text.count("/calculator(expression: string)") == 2
    assert "[tool calculator] 84." in text
    assert session.status is Status.COMPLETED
    assert [m.text for m in session.messages if m.role == "assistant"][-1] == "I say \n69"
    assert (session.task.id, session.turns, session.counters["tool_calls"]) == ("eval-0-1", 3, 2)
    assert f"agentrl view {folder}" in text.replace("\n", "")
    (run,) = Runs(tmp_path).all().values()
    assert run.summary()["environment"] == "calculator"
    assert run.store().ids() == [session.id]


@pytest.mark.slow
def test_the_end_of_the_input_ends_the_session_in_order_and_a_second_one_is_kept_beside_it(tmp_path: Path):
    _, first = piped(tmp_path, "/calculator 1+1\n")
    assert (first.status, first.error, first.turns) == (Status.TRUNCATED, "the player has left", 1)
    _, second = piped(tmp_path, ":quit\n", "seed=3")
    assert (second.turns, second.seed) == (0, 3)
    with Store(tmp_path / "sessions.db", read_only=True) as store:
        assert len(store.ids()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("end", ["Ctrl-C", "Ctrl-D"])
def test_in_a_terminal_ctrl_c_and_ctrl_d_end_the_session_and_keep_it(tmp_path: Path, end: str):
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, f"run_dir={tmp_path}"], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        try:
            os.close(theirs)
            read_until(ours, b"> ")
            os.write(ours, b"/calculator 2*3\n")
            read_until(ours, b"6. ")
            read_until(ours, b"> ")
            if end == "Ctrl-C":
                process.send_signal(signal.SIGINT)
            else:
                os.write(ours, b"\x04")
            read_until(ours, b"the session is")
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()
            os.close(ours)
    session = stored(tmp_path)
    assert (session.status, session.turns) == (Status.TRUNCATED, 1)


def read_until(terminal: int, wanted: bytes) -> None:
    """Read what the process writes, up to a text."""
    seen, deadline = b"", time.monotonic() + SECONDS
    while wanted not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([terminal], [], [], 1.0)[0]:
            seen += os.read(terminal, 1 if len(seen) < 100_000 else 1000)


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("price tea", '{"item": "tea"}'),
        ("price item=tea", '{"item": "tea"}'),
        ('price "green tea"', '{"item": "green tea"}'),
        ("price 12", '{"item": "12"}'),
        ("wait true", '{"long": true}'),
        ("wait long=maybe", '{"long": "maybe"}'),
        ('wait {"long": 1', '{"long": 1'),
    ],
)
def test_a_line_is_a_call_of_a_tool_with_the_types_of_its_schema(line: str, arguments: str):
    (call,) = call_of(line, Async(), "call_1").tool_calls or ()
    assert (call.function.name, call.function.arguments) == (line.split()[0], arguments)


@pytest.mark.parametrize(
    ("line", "words"),
    [("prize tea", "did you mean 'price'"), ("price a b", "takes 1 arguments"), ('price "a', "can't be")],
)
def test_a_line_that_is_no_call_is_refused_with_what_is_allowed(line: str, words: str):
    with pytest.raises((ConfigError, UnknownName), match=words):
        call_of(line, Async(), "call_1")


def test_a_tool_is_shown_with_its_parameters_and_its_first_line():
    shown = "/go(direction: north|east|south|west)  Walk into the next room."
    assert next(signature(tool) for tool in make("castle").tools) == shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({}, "say what to play"),
        ({"env": "calculator", "tusk": 1}, "unknown setting of play 'tusk'; did you mean 'task'"),
        ({"env": "calculator", "seed": "x"}, "seed = 'x': must be a whole number"),
        ({"env": "calculator", "split": "evil"}, "did you mean 'eval'"),
        ({"env": "calculater"}, "did you mean 'calculator'"),
        ({"env": "tests.envs.check.broken_envs:Till", "task": 7}, "task = 7: split 'train' has no task of that index"),
        ({"env": "tests.envs.check.broken_envs:Till", "task": "train-9"}, "did you mean 'train-"),
    ],
)
def test_wrong_settings_are_refused_with_what_is_allowed(tree: dict[str, Any], words: str):
    with pytest.raises(AgentRLError, match=words):
        game_of(tree)
