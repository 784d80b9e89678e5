"""What the viewer answers, and whom."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

import agentrl
from agentrl.cli import app
from agentrl.envs.registry import make
from agentrl.envs.state import resolve
from agentrl.errors import AgentRLError, ConfigError
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.sessions.tree.trainability import Untrainable
from agentrl.train.record import provenance
from agentrl.train.record.files import append, keep_lines
from agentrl.train.record.lock import RunLock
from agentrl.train.record.provenance import Trained
from agentrl.types import Message, Session, Task
from agentrl.types.messages import as_messages
from agentrl.viewer.app import create_app
from agentrl.viewer.conversations import as_pytest
from agentrl.viewer.guard import HEADERS
from agentrl.viewer.runs import Runs, RunStatus
from tests.viewer.recorded import HOSTILE, spoken, with_demonstrations, write_run, write_several


def client(folder: Path, host: str = "127.0.0.1", **options: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(folder, **options))
    return httpx.AsyncClient(transport=transport, base_url=f"http://{host}")


async def asked(folder: Path, path: str, **parameters: Any) -> Any:
    async with client(folder) as viewer:
        answer = await viewer.get(f"/api/{path}", params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json() if "json" in answer.headers["content-type"] else answer.text


@pytest.mark.slow
async def test_runs_are_found_at_any_depth_with_their_state_and_curve(runs: Path) -> None:
    found = {run["name"]: run for run in (await asked(runs, "runs"))["runs"]}
    assert list(found) == ["below/slow", "first"]
    assert found["first"]["state"] == "finished"
    assert found["first"]["done"] == found["first"]["steps"] == 30
    assert len(found["first"]["spark"]) == 30
    assert (await asked(runs / "first", "runs"))["runs"][0]["name"] == "first"


@pytest.mark.slow
async def test_evaluations_and_played_sessions_are_listed_as_what_they_are_before_and_after_their_end(
    tmp_path: Path,
) -> None:
    """An evaluation by its expert was shown as a model's; one that was interrupted as a training run of 0 steps."""
    await asyncio.to_thread(
        agentrl.evaluate, "calculator", policy="expert", run_dir=str(tmp_path / "whole"), eval={"tasks": 2}
    )
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    (tmp_path / "cut" / "result.json").unlink()
    played = tmp_path / "played"
    played.mkdir()
    (played / "config.yaml").write_text("played: true\nenv: {name: castle}\n")
    Store(played / "sessions.db").close()
    found = {run["name"]: run for run in (await asked(tmp_path, "runs"))["runs"]}
    shown = ("kind", "state", "model", "algorithm", "engine", "steps", "reward")
    assert [found["whole"][name] for name in shown] == ["evaluation", "finished", "expert", None, None, None, 1.0]
    assert [found["cut"][name] for name in shown] == ["evaluation", "stopped", "expert", None, None, None, None]
    assert [found["played"][name] for name in shown] == ["play", "finished", None, None, None, None, None]
    assert found["cut"]["updated"] <= found["whole"]["updated"] + 1, "to look at a run is no change of it"


@pytest.mark.slow
def test_a_run_is_running_while_its_process_is_and_killed_when_it_is_gone(tmp_path: Path) -> None:
    run = Runs(write_run(tmp_path / "run", steps=2, hostile=False)).get("run")
    lock = RunLock(run.path)
    assert run.state(1, 9, False) is RunStatus.RUNNING
    lock.release()
    assert run.state(1, 9, False) is RunStatus.STOPPED
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    holder = {"host": socket.gethostname(), "pid": ended.pid, "since": "2026-01-01T00:00:00"}
    (run.path / "run.lock").write_text(json.dumps(holder))
    assert run.state(1, 9, False) is RunStatus.KILLED


async def test_curves_are_sent_from_a_row_on_and_anew_when_a_resumed_run_wrote_them_again(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=4, hostile=False)
    async with client(run) as viewer:

        async def rows(start: int) -> Any:
            asked = {"run": "run", "name": ["loss", "nothing"], "start": start}
            return (await viewer.get("/api/series", params=asked)).json()["runs"]["run"]

        whole = await rows(0)
        assert whole["step"] == [1, 2, 3, 4]
        assert whole["values"]["nothing"] == [None] * 4
        file = run / "metrics.jsonl"
        lines = file.read_bytes().splitlines(keepends=True)
        append(file, orjson.dumps({"step": 5, "loss": float("nan")}) + b'\n{"step": 6, "lo')
        more = await rows(4)
        assert (more["step"], more["values"]["loss"], more["epoch"]) == ([5], [None], whole["epoch"])
        beside = run / "other"
        beside.write_bytes(b"".join(lines[:2]))
        beside.replace(file)
        again = await rows(5)
        assert again["rows"] == 2
        assert again["epoch"] != whole["epoch"]


async def test_sessions_are_filtered_sorted_and_paged_by_the_server(runs: Path) -> None:
    page = await asked(
        runs, "sessions", run="first", sort="score", descending="1", limit=10, step="20..25", phase="train"
    )
    assert page["total"] == 6 * 2 * 4
    scores = [row["score"] for row in page["rows"] if row["score"] is not None]
    assert scores == sorted(scores, reverse=True)
    following = await asked(
        runs,
        "sessions",
        run="first",
        sort="score",
        descending="1",
        limit=10,
        step="20..25",
        phase="train",
        after=page["next"],
    )
    assert not {row["id"] for row in page["rows"]} & {row["id"] for row in following["rows"]}


async def test_the_sessions_that_a_policy_played_are_all_but_demonstrations_unless_there_are_no_others(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "run", steps=1, hostile=False)
    with_demonstrations(run)
    every = await asked(tmp_path, "sessions", run="run")
    played = await asked(tmp_path, "sessions", run="run", phase="played")
    assert sum(row["phase"] == "demo" for row in every["rows"]) == 3
    assert played["total"] == every["total"] - 3
    assert all(row["phase"] != "demo" for row in played["rows"])
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.yaml").write_text("steps: 1")
    with_demonstrations(tmp_path / "begun")
    assert (await asked(tmp_path, "sessions", run="begun", phase="played"))["total"] == 3


async def test_the_sessions_of_a_point_are_those_that_its_step_trained_on(runs: Path) -> None:
    page = await asked(runs, "sessions", run="first", trained="7", limit=50)
    assert {row["group"] for row in page["rows"]} == {"train-12.0", "train-13.0"}
    assert (await asked(runs, "sessions", run="first", trained="999"))["rows"] == []


@pytest.mark.parametrize(
    ("text", "finds"),
    [
        ("DIVISION by zero", True),
        ('"expression": "4*5"', True),
        ("need the product", True),
        ("calculator", True),
        ('"role"', False),
    ],
)
async def test_text_is_found_in_contents_reasoning_and_arguments_and_not_in_the_format(
    runs: Path, text: str, finds: bool
) -> None:
    found = await asked(runs, "sessions", run="first", text=text)
    assert bool(found["rows"]) is finds
    assert found["searched"] == 242
    assert found["next"] is None


async def test_the_choices_of_a_filter_are_counted_as_the_filter_finds_them(runs: Path) -> None:
    facets = await asked(runs, "facets", run="first")
    assert set(facets) == {"status", "phase", "environment", "blame", "agent", "tool", "tag"}
    assert facets["tool"]["calculator"] == 240
    for name, values in facets.items():
        for value, count in values.items():
            found = await asked(runs, "sessions", run="first", limit=1, **{name: value})
            assert found["total"] == count, f"{name}={value}"


async def test_the_distribution_counts_every_scored_session_once(runs: Path) -> None:
    found = await asked(runs, "distribution", run="first", phase="train")
    rows = await asked(runs, "sessions", run="first", phase="train", limit=1)
    unscored = (await asked(runs, "sessions", run="first", phase="train", score="", limit=1))["total"]
    assert sum(count for _, _, count in found["counts"]) == rows["total"] - unscored


async def test_policies_are_compared_in_the_sessions_that_they_shared(tmp_path: Path) -> None:
    write_several(tmp_path / "several")
    about = await asked(tmp_path, "run", run="several")
    assert about["policies"] == ["main", "rival", "past"]
    found = await asked(tmp_path, "players", run="several")
    assert found["policies"] == ["main", "rival", "past/1"]
    assert {(one, other): (count, mean) for one, other, count, mean in found["cells"]} == {
        ("main", "rival"): (2, 0.75),
        ("rival", "main"): (2, 0.25),
        ("main", "past/1"): (1, 0.75),
        ("past/1", "main"): (1, 0.0),
    }
    session = await asked(tmp_path, "session", run="several", id="match-0")
    assert session["policies"] == about["policies"]


async def test_a_session_has_its_tree_its_messages_and_its_tokens(runs: Path) -> None:
    about = await asked(runs, "session", run="first", id="forked-0.0-0")
    assert [node["parent"] for node in about["nodes"]] == [None, 0, 1, 2, 2, 4, 5, 2, 7, 8]
    assert [branch["reward"] for branch in about["branches"]] == [1.0, 0.0, 0.5]
    (message,) = await asked(runs, "messages", run="first", id="forked-0.0-0", node=1)
    assert message["message"] == {"role": "assistant", "content": "North."}
    tokens = await asked(runs, "tokens", run="first", id="forked-0.0-0", node=1)
    assert tokens["logp"][:2] == [None, None]
    assert tokens["trained"] == [False] * 2 + [True] * 6
    assert tokens["version"] == [None] * 2 + [3] * 6
    assert tokens["position"] == 2
    assert (tokens["support"], set(tokens["untrainable"])) == (None, {None})


async def test_a_narrowed_turns_tokens_say_from_how_many_each_was_drawn_and_why_some_are_not_trained(
    runs: Path,
) -> None:
    tokens = await asked(runs, "tokens", run="first", id="forked-0.0-0", node=3)
    assert tokens["support"] == {"rule": "agentrl-1", "vocabulary": 64, "sizes": [None, None, 2, 1, 64, *[None] * 3]}
    assert tokens["trained"] == [False] * 2 + [True] * 3 + [False] * 3
    lost = (Untrainable.OVERSIZE, Untrainable.OUTSIDE, Untrainable.UNRECORDED)
    assert tokens["untrainable"] == [None] * 5 + [reason.words for reason in lost]


async def test_a_turn_traces_to_its_weights_and_to_the_steps_that_trained_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=4, hostile=False)
    async with client(run) as viewer:

        async def origin(id_: str, node: int) -> Any:
            found = await viewer.get("/api/tokens", params={"run": "run", "id": id_, "node": node})
            return found.json()["origin"]

        assert await origin("train-6.0-0", 0) is None
        found = await origin("train-6.0-0", 3)
        assert [(each["version"], each["checksums"]) for each in found["weights"]] == [(3, {"local": f"{3:032x}"})]
        assert found["sampling"]["temperature"] == 1.0
        ((step,),) = [found["trained"]]
        assert (step["step"], step["version"], len(step["credit"])) == (4, 3, 1)
        again = Trained(4, {"train-6.0-0": 1.0}, {"train-6.0-0": {"3": [[0.5, 0.1, "hash"], [-1.0, 0.2]]}}, "", {})
        provenance.write(run, 5, [again])
        assert [each["step"] for each in (await origin("train-6.0-0", 3))["trained"]] == [4, 5]
        assert (await origin("train-6.0-0", 3))["trained"][1]["credit"] == [[0.5, 0.1], [-1.0, 0.2]]
        keep_lines(run / provenance.NAME, 3)  # as a resumed run does
        assert await origin("train-6.0-0", 3) == {**found, "weights": [None], "trained": []}
        append(run / "provenance.jsonl", b'{"torn": ')
        (run / "provenance.jsonl").unlink()
        assert (await origin("train-6.0-0", 3))["trained"] == []


def test_a_copied_pytest_case_passes_until_the_environment_answers_otherwise(runs: Path) -> None:
    session = asyncio.run(played())
    case = as_pytest(Runs(runs).get("first"), session, len(session.nodes) - 1)
    scope: dict[str, Any] = {}
    assert "agentrl." not in "".join(line for line in case.splitlines() if "import" in line), "public names alone"
    exec(case, scope)
    scope["test_the_environment_gives_the_recorded_answers"]()
    session.nodes[2].message = Message(role="tool", content="1000000", tool_call_id="call_1")
    exec(as_pytest(Runs(runs).get("first"), session, len(session.nodes) - 1), scope)
    with pytest.raises(AssertionError):
        scope["test_the_environment_gives_the_recorded_answers"]()


async def played() -> Session:
    """The calculator's expert solves a problem."""
    env = make("calculator")
    task = next(iter(env.tasks("train")))
    task = task if isinstance(task, Task) else Task(id="t", data=dict(task))
    session = Session("played", task, seed=3)
    (asked,) = as_messages(await resolve(env.reset(task, seed=3)))
    node, over = tree.add(session, None, asked, [1]), False
    while not over:
        said = await resolve(env.expert(session.messages))
        message = said if isinstance(said, Message) else Message(role="assistant", content=said)
        node = spoken(session, node, message, 0)
        step = await resolve(env.step(message))
        for answer in step.messages:
            node = tree.add(session, node.id, answer, [2])
        over = step.terminated
    return session


async def test_openai_messages_follow_one_path_and_json_has_the_whole_session(runs: Path) -> None:
    path = json.loads(await asked(runs, "copy", run="first", id="forked-0.0-0", node=6, **{"as": "openai"}))
    assert [message["content"] for message in path["messages"]][-2:] == ["It is dark now.", "I light lamp 0."]
    assert len(json.loads(await asked(runs, "copy", run="first", id="forked-0.0-0", **{"as": "json"}))["nodes"]) == 10


async def test_what_is_long_is_cut_on_the_page_and_said(runs: Path) -> None:
    (row,) = (await asked(runs, "sessions", run="first", group="hostile"))["rows"]
    (message,) = await asked(runs, "messages", run="first", id=row["id"], node=2)
    assert len(message["message"]["content"]) < 110_000
    assert "more characters" in message["message"]["content"][-60:]
    assert message["message"]["content"].startswith(HOSTILE)


async def test_settings_that_are_secret_by_name_are_hidden(runs: Path) -> None:
    settings = (await asked(runs, "run", run="first"))["settings"]
    assert settings["rewards.judge.api_key"] == "(hidden)"
    assert settings["algo.lr"] == 1e-3


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/api/run?run=../first", 404),
        ("/api/run?run=/etc", 404),
        ("/api/session?run=first&id=none", 400),
        ("/api/sessions?run=first&limit=0", 400),
        ("/api/sessions?run=first&sort=nothing", 404),
        ("/api/sessions?run=first&score=a..b", 400),
        ("/api/sessions?run=first&after=x", 400),
        ("/api/messages?run=first&id=forked-0.0-0&node=99", 400),
        ("/static/../app.py", 404),
        ("/static/%2e%2e/app.py", 404),
        ("/static//etc/passwd", 404),
    ],
)
async def test_what_is_not_there_or_makes_no_sense_is_refused_in_words(runs: Path, path: str, code: int) -> None:
    async with client(runs) as viewer:
        answer = await viewer.get(httpx.URL(f"http://127.0.0.1{path}"))
        assert answer.status_code == code
        assert answer.text


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", ""])
async def test_a_name_that_is_not_this_servers_is_refused(runs: Path, host: str) -> None:
    """DNS rebinding: a site's own name, pointed at this machine, would make it the same origin."""
    async with client(runs) as viewer:
        assert (await viewer.get("/api/runs", headers={"host": host})).status_code == 421
    async with client(runs, hosts=("evil.example",)) as viewer:
        allowed = await viewer.get("/api/runs", headers={"host": "evil.example:8080"})
        assert allowed.status_code == 200


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8080", "[::1]:8080", "192.168.1.5"])
async def test_addresses_and_this_machines_names_are_served(runs: Path, host: str) -> None:
    async with client(runs) as viewer:
        assert (await viewer.get("/", headers={"host": host})).status_code == 200


async def test_with_a_token_only_its_holder_reads_and_the_address_loses_it(runs: Path) -> None:
    async with client(runs, token="a" * 20) as viewer:
        for path in ("/", "/api/runs", "/static/app.js", "/?token=wrong", "/api/runs?token="):
            assert (await viewer.get(path)).status_code == 401
        assert (await viewer.get("/api/runs", headers={"authorization": f"Bearer {'a' * 20}"})).status_code == 200
        answer = await viewer.get(f"//evil.example/?token={'a' * 20}")
        assert answer.status_code == 303
        assert answer.headers["location"] == "/"
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert (await viewer.get("/api/runs")).status_code == 200


@pytest.mark.parametrize("path", ["/", "/api/runs", "/static/app.js", "/nothing", "/api/run?run=x"])
async def test_every_answer_carries_the_policy_and_what_is_only_read_can_not_be_written(runs: Path, path: str) -> None:
    async with client(runs) as viewer:
        answer = await viewer.get(path)
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        own = {"origin": "http://127.0.0.1"}
        assert (await viewer.post(path, headers=own)).status_code in (404, 405)
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
            assert (await viewer.request(method, path, headers=own)).status_code == 405


def test_pages_ask_nobody_else() -> None:
    import agentrl.viewer

    for file in (Path(agentrl.viewer.__file__).parent / "static").iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text
        assert "https://" not in text
        assert "innerHTML" not in text


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        create_app(tmp_path / "none")


@pytest.mark.slow
def test_the_command_serves_until_it_is_interrupted(runs: Path) -> None:
    command = [sys.executable, "-m", "agentrl", "view", str(runs), "port=0", "token=abcdefghijklmnopqrst"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as viewer:
        assert viewer.stdout is not None
        url = viewer.stdout.readline().split()[-1]
        assert httpx.get(url, follow_redirects=True, timeout=60).text.startswith("<!doctype html>")
        viewer.send_signal(signal.SIGINT)
        assert viewer.wait(60) == 0


@pytest.mark.slow
@pytest.mark.parametrize("words", [["nowhere"], [".", "port=x"], [".", "token=short"], [".", "prot=1"]])
def test_a_mistake_on_the_command_line_is_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((AgentRLError, SystemExit)) as raised:
        app(["view", *words], standalone_mode=False)
    assert re.search("nowhere|port|token", str(raised.value))
