"""Agent programs and several policies in environment workers: the same runs as in one process."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from agentrl.config import GatewayConfig, RolloutConfig
from agentrl.errors import ConfigError
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.episodes.programs import serving
from agentrl.rollout.workers.gateways import own_gateway
from agentrl.sessions.store.store import Store
from agentrl.train.record import ledger
from agentrl.types import MAIN
from tests.cluster.test_contract import SILENCE
from tests.cluster.test_run import require_same, run, tokens
from tests.rollout.self_play import self_play
from tests.sessions.gateway.fakes import ScriptedEngine, renderer

EXAMPLES = Path(__file__).parents[2] / "examples"
AGENT = f"""
import contextlib, os, runpy, signal
from pathlib import Path

solve = runpy.run_path({str(EXAMPLES / "openai_agent" / "agent.py")!r})["agent"]


async def agent(task, client):
    with contextlib.suppress(FileNotFoundError):
        Path(__file__).with_name("kill").unlink()
        os.kill(os.getpid(), signal.SIGSTOP)
    Path(__file__).with_name("urls").open("a").write(f"{{client.base_url}}\\n")
    return await solve(task, client)
"""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's agent; once, where there is a file `kill` beside it, it stops its process."""
    file = tmp_path_factory.mktemp("agent") / "agent.py"
    file.write_text(AGENT)
    return file


@pytest.fixture(scope="module")
def here(agent: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder and the result of the agent's run in one process."""
    folder = tmp_path_factory.mktemp("runs") / "local"
    return folder, run(folder, agent=f"{agent}:agent", steps=1)


def certificate(host: str, folder: Path) -> dict[str, str]:
    issued = trustme.CA().issue_cert(host)
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(str(folder / "certificate.pem"), append=number > 0)
    return {"tls_certificate": str(folder / "certificate.pem"), "tls_key": str(folder / "key.pem")}


@pytest.mark.slow
def test_programs_on_another_node_reach_its_gateway_by_https_and_change_nothing_where_a_worker_stops(
    ray_nodes: Any, agent: Path, here: tuple[Path, Any], tmp_path: Path
) -> None:
    for name in ("kill", "urls"):
        agent.with_name(name).touch()
    node = ray_nodes.address.partition(":")[0]
    there = run(
        tmp_path / "ray",
        agent=f"{agent}:agent",
        steps=1,
        cluster={
            "name": "ray",
            "address": ray_nodes.address,
            "environments": 1,
            "silence_timeout": SILENCE,
            "resources": {"environments": {"custom": {"far": 1}}},
        },
        gateway={"host": "node", **certificate(node, tmp_path)},
    )
    require_same(tmp_path / "ray", there, here)
    assert list(ledger.faults(tmp_path / "ray")) == []
    assert not agent.with_name("kill").exists()
    with Store(tmp_path / "ray" / "sessions.db") as store:
        assert sum(session.attempt for session in store.sessions()) > 0, "no session was drawn again"
    urls = agent.with_name("urls").read_text().splitlines()[len(tokens(here[0])) :]
    assert {url.partition("/sessions")[0].rpartition(":")[0] for url in urls if "https" in url} == {f"https://{node}"}


@pytest.mark.slow
def test_a_recorded_run_of_a_program_is_run_again_by_workers(
    agent: Path, here: tuple[Path, Any], tmp_path: Path
) -> None:
    again = run(tmp_path / "again", agent=f"{agent}:agent", steps=1, rerun=str(here[0]), cluster={"environments": 1})
    require_same(tmp_path / "again", again, here)


@pytest.mark.slow
def test_past_versions_that_play_in_workers_generate_as_in_one_process(tmp_path: Path) -> None:
    settings = self_play(steps=2, rollout={"groups_per_step": 2}, eval={"tasks": 2}, warm_start={"steps": 5})
    for name, workers in (("here", 0), ("workers", 1)):
        run(tmp_path / name, **settings, cluster={"environments": workers})
    assert tokens(tmp_path / "workers") == tokens(tmp_path / "here") != {}
    with Store(tmp_path / "workers" / "sessions.db") as store:
        played = {node.policy for session in store.sessions() for node in session.nodes}
    assert {MAIN, "earlier/0"} <= played


@pytest.mark.slow
async def test_nobody_else_opens_sessions_at_a_runs_gateway_wherever_it_listens(tmp_path: Path) -> None:
    policy, names = Policy(renderer(), ScriptedEngine(lambda prompt: "")), certificate("agents.test", tmp_path)
    where = GatewayConfig(host="0.0.0.0", name="agents.test", **names)
    with Store(":memory:") as store:
        async with own_gateway(policy, store, RolloutConfig(), where) as gateway:
            assert re.fullmatch(r"https://agents\.test:\d+", gateway.url)
            port = gateway.url.rpartition(":")[2]
            async with httpx.AsyncClient(verify=False) as client:
                answer = await client.post(f"https://127.0.0.1:{port}/sessions", json={})
    assert answer.status_code == 401


async def test_a_certificate_without_its_key_is_refused_by_the_settings_names(tmp_path: Path) -> None:
    where = GatewayConfig(tls_certificate="certificate.pem")
    with Store(":memory:") as store, pytest.raises(ConfigError, match=r"gateway\.tls_certificate=.* HTTPS needs both"):
        async with serving("sleep 1", Policy(renderer(), ScriptedEngine(lambda _: "")), store, RolloutConfig(), where):
            await asyncio.sleep(0)
