"""Replays that the page asks for: who may, how they end, and where they are in the session's tree."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ConfigError
from agentrl.sessions.store.store import Store
from agentrl.viewer.replay_process import ReplayRequest, Replays
from tests.viewer.recorded import replayed, write_run
from tests.viewer.test_app import client

pytestmark = pytest.mark.slow

OWN = {"origin": "http://127.0.0.1"}
ASKED = {"run": "run", "id": "train-2.0-0"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", steps=3, hostile=False)


@pytest.fixture
def replays(in_tmp_path: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Replays]:
    """A command in the place of `agentrl`: it prints its words and lives until it is interrupted, or for `n` tenths."""
    (tmp_path / "agentrl.py").write_text(
        "import sys, time\nprint(' '.join(sys.argv[1:]))\nprint('\\x1b[31m' + 'x' * 5000)\n"
        "n = next(int(word[2:]) for word in sys.argv if word.startswith('n='))\n"
        "for _ in range(n): time.sleep(0.1 if n < 5 else 100)\nsys.exit(n == 3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made = Replays(grace=5.0)
    yield made
    made.close()


def ended(replays: Replays, run: Path, session: str) -> dict[str, Any]:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        state = replays.of(run, session)
        if state is not None and state["ended"]:
            return state
        time.sleep(0.02)
    raise AssertionError("the replay did not end")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:81"},
        {**OWN, "sec-fetch-site": "cross-site"},
        {**OWN, "sec-fetch-site": "same-site"},
    ],
)
async def test_only_the_viewers_own_page_may_start_a_replay(
    run: Path, replays: Replays, headers: dict[str, str]
) -> None:
    async with client(run, replays=replays) as viewer:
        answer = await viewer.post("/api/replay", params=ASKED, json={"turn": 1}, headers=headers)
        assert answer.status_code == 403
    assert replays.of(run, "train-2.0-0") is None


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"data": {"turn": "1"}}, "application/json"),
        ({"json": {"turn": 0}}, "turn"),
        ({"json": {"turn": 1, "n": 65}}, "n"),
        ({"json": {"turn": 1, "sed": 1}}, "sed"),
        ({"json": [1]}, "object"),
        ({"content": b"{", "headers": {**OWN, "content-type": "application/json"}}, "no JSON"),
        ({"json": {"turn": 1, "model": "x" * 70_000}}, "bytes"),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused_in_words(
    run: Path, replays: Replays, sent: dict[str, Any], said: str
) -> None:
    async with client(run, replays=replays) as viewer:
        answer = await viewer.post("/api/replay", params=ASKED, **{"headers": OWN, **sent})
        assert answer.status_code == 400
        assert said in answer.json()["error"]


async def test_without_a_token_that_fits_nothing_is_started_and_a_viewer_that_only_reads_has_no_way_to(
    run: Path, replays: Replays
) -> None:
    async with client(run, replays=replays, token="a" * 20) as viewer:
        assert (await viewer.post("/api/replay", params=ASKED, json={"turn": 1}, headers=OWN)).status_code == 401
    async with client(run) as viewer:
        assert (await viewer.post("/api/replay", params=ASKED, json={"turn": 1}, headers=OWN)).status_code == 404
        assert (await viewer.get("/api/session", params=ASKED)).json()["replay"]["refused"] == "the viewer only reads"


async def test_a_replay_runs_beside_the_viewer_which_shows_what_it_prints_and_how_it_ended(
    run: Path, replays: Replays
) -> None:
    given = {"turn": 2, "n": 3, "seed": 7, "model": "[1e5]; rm"}
    async with client(run, replays=replays) as viewer:
        answer = await viewer.post("/api/replay", params=ASKED, json=given, headers=OWN)
        assert answer.status_code == 200, answer.text
        state = await asyncio.to_thread(ended, replays, run, "train-2.0-0")
        assert state["ended"] == "failed with exit code 1"
        assert (await viewer.get("/api/session", params=ASKED)).json()["replay"]["job"]["lines"] == state["lines"]
    assert state["lines"][0] == f'replay {run}/train-2.0-0 turn=2 n=3 seed=7 model="[1e5]; rm"'
    assert state["lines"][1].startswith("\\x1b[31mxxx")
    assert len(state["lines"][1]) <= 2010


def test_one_replay_runs_at_a_time_and_is_ended_by_its_user_its_deadline_or_the_viewers_end(
    run: Path, replays: Replays
) -> None:
    long = ReplayRequest(turn=1, n=9)
    replays.start(run, "a", long)
    with pytest.raises(ConfigError, match="session 'a' is under way"):
        replays.start(run, "b", long)
    replays.cancel(run, "b")
    replays.cancel(run, "a")
    assert ended(replays, run, "a")["ended"] == "cancelled"
    replays.start(run, "a", ReplayRequest(turn=1, n=9, minutes=0.01))
    assert ended(replays, run, "a")["ended"] == "ended after 0.01 minutes"
    replays.start(run, "a", long)
    replays.close()
    assert ended(replays, run, "a")["ended"] == "cancelled"


def test_a_session_whose_id_is_a_path_is_not_handed_to_the_command(run: Path, replays: Replays) -> None:
    for name in ("../other/session", "a/b", "..", ""):
        with pytest.raises(ConfigError, match="can't be replayed"):
            replays.start(run, name, ReplayRequest(turn=1))


async def test_replays_are_branches_that_leave_the_recorded_path_where_they_differ(run: Path) -> None:
    with Store(run / "sessions.db", read_only=True) as store:
        recorded = store.load("train-2.0-0")
    same = replayed(recorded, "@2", recorded.nodes)
    other = replayed(recorded, "@2.1", recorded.nodes[:3], "another answer", reward=0.5)
    again = replayed(recorded, "@2.2~small", recorded.nodes[:3], "another answer", reward=0.25)
    with Store(run / "replays.db") as store:
        for each in (same, other, again, replayed(recorded, "0@2.1", recorded.nodes)):
            store.save(each)
    async with client(run) as viewer:
        found = (await viewer.get("/api/session", params=ASKED)).json()
        whole = (await viewer.get("/api/copy", params={**ASKED, "as": "json"})).json()
        (message,) = (await viewer.get("/api/messages", params={**ASKED, "node": 4})).json()
    assert [node["parent"] for node in found["nodes"]] == [None, 0, 1, 2, 2]
    assert [node["turn"] for node in found["nodes"]] == [None, 1, None, 2, None]
    assert message["message"]["content"] == "another answer"
    named = [(each["turn"], each["seed"], each["model"], each["own"], each["leaf"]) for each in found["replay"]["done"]]
    assert named == [(2, None, None, 0, 3), (2, "1", None, 1, 4), (2, "2", "small", 0, 4)]
    assert [branch["reward"] for branch in found["branches"]] == [recorded.reward, 0.5]
    assert found["score"] == recorded.score
    mean = ((recorded.score or 0.0) + 0.5) / 2
    assert [(each["turn"], each["mean"], each["n"]) for each in found["replay"]["values"]] == [(2, mean, 2)]
    assert len(whole["nodes"]) == 4
