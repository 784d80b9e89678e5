"""The public SDK, unmodified and from the package index, against a server in a process of its own, which is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.cluster.server import free_port
from agentrl.models import tiny
from tests.conftest import need

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".venv-tinker" / "bin" / "python"
SHAPE = tiny.TinyShape(vocab=300, layers=2, width=32, heads=2, kv_heads=1, mlp=32, context=64)
DATA = ([5, 6, 7, 8, 9, 10], [5, 6, 7, 11, 12], [5, 6])
"""The program's."""


class TrainingServer:
    """A server's process, which can be killed and started again at its address."""

    def __init__(self, folder: Path, model: Path, *words: str) -> None:
        self.folder, self.process = folder, None
        own = (f"port={free_port()}", f"run_dir={folder}", "tenants=[a,b]", "trainer.proof=false")
        self.about = self.start(f"model={model}", *own, *words)

    def start(self, *words: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "agentrl", "serve-training", *words]
        self.process: subprocess.Popen[str] | None = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=(self.folder.parent / "log").open("a"), text=True, cwd=ROOT
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (self.folder.parent / "log").read_text()
        about: dict[str, Any] = json.loads(line)
        return about

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def again(self) -> None:
        port = self.about["address"].rpartition(":")[2]
        assert self.start(f"resume={self.folder}", f"port={port}")["keys"] == self.about["keys"]

    def end(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait()


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """All that the program printed, in one table."""
    need(PYTHON.exists(), f"the tinker SDK in {PYTHON.parents[1].name} (make installed)")
    scratch = tmp_path_factory.mktemp("server")
    model = tiny.build(scratch / "model", ["one two three"] * 3, shape=SHAPE)
    server = TrainingServer(scratch / "run", model)
    program = Path(__file__).with_name("tinker_client.py")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TINKER_TELEMETRY": "0", "HOME": str(scratch)}
    environment.pop("PYTHONPATH", None)
    with subprocess.Popen(
        [PYTHON, "-W", "ignore", program, sysconfig.get_path("purelib"), str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(scratch / "client").open("w"),
        text=True,
        env=environment,
        cwd=scratch,
    ) as client:
        try:
            assert client.stdin is not None
            assert client.stdout is not None
            client.stdin.write(json.dumps(server.about) + "\n")
            client.stdin.flush()
            found: dict[str, Any] = {}
            for line in client.stdout:
                part = json.loads(line)
                if "kill" in part:
                    server.kill()
                    client.stdin.write("read\n")
                    client.stdin.flush()
                    server.again()
                if "inputs" in part:  # what is refused has the names of other parts
                    part = {"refused": part}
                found |= part
            assert client.wait() == 0, (scratch / "client").read_text()
        finally:
            client.kill()
            ended = server.end()
    return found | {"ended": ended, "folder": scratch / "run"}


@pytest.mark.slow
def test_a_supervised_loop_learns_and_prefixes_are_computed_once(said: dict[str, Any]) -> None:
    assert said["first"][::2] == sorted(said["first"][::2], reverse=True)
    distinct = {tuple(ids[: n + 1]) for ids in DATA for n in range(len(ids) - 1)}
    assert said["custom"]["computed_tokens:sum"] == len(distinct) < sum(len(ids) - 1 for ids in DATA)


@pytest.mark.slow
def test_every_loss_of_the_wire_is_computed_and_a_loss_of_ones_own_is_the_same_as_ours(said: dict[str, Any]) -> None:
    advantages = sum((1.0 - n) * (len(ids) - 1) for n, ids in enumerate(DATA))
    for loss in ("importance_sampling", "ppo"):  # fresh tokens have the ratio 1
        assert said["losses"][loss] == pytest.approx(-advantages, abs=1e-4)
    assert set(said["losses"]) == {"importance_sampling", "ppo", "cispo", "dro"}
    assert said["custom"]["loss:sum"] == pytest.approx(said["theirs"])
    assert said["custom"]["mine:sum"] == 1
    assert said["norm"] > 0


@pytest.mark.slow
def test_saved_state_is_trained_on_bit_for_bit(said: dict[str, Any]) -> None:
    assert said["ways"][0] == said["ways"][1]
    assert said["rank"] == 2
    assert said["fresh"] == said["ways"][0][0]
    assert "exists already" in said["twice"]


@pytest.mark.slow
def test_samples_follow_their_seed_and_have_the_trainers_log_probabilities(said: dict[str, Any]) -> None:
    first, second = said["samples"]
    assert first == second
    assert first[0] != first[1]
    assert said["scored"][0] is None
    assert said["prompt"] == pytest.approx(said["scored"][:3])
    assert said["scored"][1:] == pytest.approx(said["trained"], abs=1e-4)
    assert first[0][1] == pytest.approx(said["trained"][2:], abs=1e-4)


@pytest.mark.slow
def test_what_is_not_there_is_said_and_tenants_are_apart(said: dict[str, Any]) -> None:
    told = said["refused"]
    for name, words in {
        "loss": "RequestFailedError: Request failed: loss_fn='gspo' is not computed here",
        "inputs": "lacks 'advantages'",
        "base": "this server has",
        "rank": "at most 256",
        "key": "AuthenticationError",
        "stranger": "is not known here",
        "public": "is not served here; docs/training_server.md",
        "gone": "there are no such weights",
    }.items():
        assert words in told[name], name
    assert told["deleted"] == "none"
    assert told["saved"] == ["weights/one"]


@pytest.mark.slow
def test_a_killed_server_goes_on_and_no_client_notices(said: dict[str, Any]) -> None:
    assert said["want"] == said["got"]
    assert said["before"] == said["after"]


@pytest.mark.slow
def test_it_ends_gracefully_and_keeps_a_folder_for_each_tenant(said: dict[str, Any]) -> None:
    assert said["ended"] == 0
    folder: Path = said["folder"]
    assert sorted(p.name for p in (folder / "tenants").iterdir()) == ["a", "b"]
    assert (folder / "tenants" / "a" / "key").stat().st_mode & 0o77 == 0
