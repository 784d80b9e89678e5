"""A Ray cluster that can't be joined ends a run or a check with what to look at, not with a wait."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from agentrl.cluster import open_cluster
from agentrl.cluster.ray.joining import require_answer
from agentrl.config import ClusterConfig
from agentrl.errors import ConfigError
from tests.conftest import need

pytestmark = pytest.mark.slow

LONG = 240.0


TERMINATED = """
import os, signal, sys, time
from agentrl.cluster import open_cluster
from agentrl.config import ClusterConfig

signal.signal(signal.SIGTERM, lambda number, frame: print("told to end"))
with open_cluster(ClusterConfig(name="ray", address=sys.argv[1]), None):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
    print("and still here")
"""


@pytest.fixture(autouse=True)
def ray() -> None:
    need(find_spec("ray") is not None, "the tests of cluster=ray need Ray (the extra `ray`)")


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_an_address_where_nothing_listens_is_refused_at_once_with_what_to_check() -> None:
    """`agentrl doctor cluster.address=127.0.0.1:1` did not end within ten minutes."""
    told = r"cluster\.address='127\.0\.0\.1:1'.*does not accept connections on port 1: .*ray start --head"
    with pytest.raises(ConfigError, match=told), open_cluster(ClusterConfig(name="ray", address="127.0.0.1:1"), None):
        pass


def test_a_server_that_is_no_ray_cluster_is_given_up_at_the_deadline(silent: str) -> None:
    with pytest.raises(ConfigError, match=r"no answer within 3 s; check that `ray start --head` runs there"):
        require_answer(silent, timeout=3.0)


def test_a_missing_token_is_told_as_such(silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(ConfigError, match=r"it requires a token: set RAY_AUTH_MODE=token.*docs/cluster\.md"):
        require_answer(silent, LONG)


def test_sigterm_still_reaches_a_process_that_has_joined_a_cluster(ray_nodes: Any) -> None:
    """`ray.init` took it: a run in a job that `ray job stop` ended saved nothing."""
    words = [sys.executable, "-c", TERMINATED, ray_nodes.address]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LONG)
    assert done.stdout.splitlines() == ["told to end", "and still here"], done.stderr
    assert done.returncode == 0
