"""Real inference servers for tests: one at a time, shared by what a module wants of it, and gone with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentrl.config import EngineConfig
from agentrl.rollout.engines import make_engine
from agentrl.rollout.engines.servers.remote import RemoteEngine
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from tests.conftest import need
from tests.suite.schedule import kept

ROOT = Path(__file__).resolve().parents[3]
FORKED = Path(__file__).parent / "forked"
START_SECONDS = 900.0
"""A loaded machine of two cores takes minutes for what a quiet one does in 40 s."""
ATTACHED = {
    "sglang": {"max_batch": 32, "server": {"max_total_tokens": 20000, "grammar_backend": "llguidance"}},
    "vllm": {"max_batch": 32, "server": {"block_size": 32, "structured_outputs_config": {"backend": "guidance"}}},
}
"""What the shared servers are started with, beside the defaults."""


def python(name: str) -> str:
    """The interpreter that has an engine; the test fails in CI and skips elsewhere where there is none."""
    path = ROOT / f".venv-{name}" / "bin" / "python"
    need(path.exists(), f"{name} is not installed: tests/engines_env/install.sh {name}")
    return str(path)


def forking_python(name: str) -> str:
    """The same, in which an engine forks its processes: it starts with half the CPU seconds and a fourth less memory.

    Those of `tests/cluster/test_servers.py` start as users' do.
    """
    python(name)  # which says where there is none
    return str(FORKED / f"{name}_python.sh")


def config(name: str, **settings: Any) -> EngineConfig:
    """A server's settings: on the CPU, in float32, in its own environment."""
    RemoteEngine.attach_seconds = START_SECONDS
    given = {
        "device": "cpu",
        "python": forking_python(name),
        "start_timeout": START_SECONDS,
        **ATTACHED[name],
        **settings,
    }
    return ServerConfig(name=name, **given)


def served(name: str, folder: Path, **settings: Any) -> Iterator[str]:
    """A server's address, for as long as a fixture lasts."""
    engine: Any = make_engine(config(name, **settings), folder)
    try:
        asyncio.run(engine.start())
        yield engine.client.url
    finally:
        engine.server.kill()


def shared(name: str, folder: Path) -> str:
    """The address of a server with the defaults that modules share: each test brings the weights that it needs."""
    return kept(name, lambda: contextmanager(served)(name, folder))


def attached(name: str, folder: Path, url: str, **settings: Any) -> Any:
    """An engine on a server that runs, for one test in its own event loop."""
    given = {"device": "cpu", "url": url, "server": ATTACHED[name]["server"], **settings}
    engine: Any = make_engine(ServerConfig(name=name, **given), folder)
    engine.attach_seconds = START_SECONDS
    return engine
