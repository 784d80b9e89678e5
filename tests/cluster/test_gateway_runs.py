"""Runs whose agent programs are served by gateway workers: the same as with a gateway beside each program."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from agentrl.sessions.store.store import Store
from agentrl.train.record import ledger
from tests.cluster.conftest import add_node, remove_node
from tests.cluster.test_contract import SILENCE
from tests.cluster.test_programs import certificate
from tests.cluster.test_run import NARROWED, require_same, require_supports, run

IN_A_RUN = f"""
import asyncio, contextlib, os, re, runpy, signal
from pathlib import Path

solve = runpy.run_path({str(Path(__file__).parents[2] / "examples" / "openai_agent" / "agent.py")!r})["agent"]


async def agent(task, client):
    victim, urls = Path(__file__).with_name("victim"), Path(__file__).with_name("urls")
    with urls.open("a") as file:
        file.write(f"{{client.base_url}}\\n")
    while victim.exists():
        if len({{url.partition("/sessions")[0] for url in urls.read_text().split()}}) > 1:
            with contextlib.suppress(FileNotFoundError):
                log = Path(victim.read_text())
                victim.unlink()
                sent = int(victim.with_name("signal").read_text())
                os.kill(int(re.search(r"process (\\d+)", log.read_text())[1]), sent)
        await asyncio.sleep(0.01)
    return await solve(task, client)
"""


@pytest.fixture(scope="module")
def solver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's agent; where a file `victim` beside it names a worker's log it kills that worker when two serve."""
    made = tmp_path_factory.mktemp("solver") / "agent.py"
    made.write_text(IN_A_RUN)
    return made


@pytest.fixture(scope="module")
def here(solver: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder and the result of the agent's run in one process."""
    folder = tmp_path_factory.mktemp("runs") / "local"
    result = run(folder, agent=f"{solver}:agent", steps=1, rollout=NARROWED)
    require_supports(folder)
    return folder, result


def run_with(folder: Path, solver: Path, sent: signal.Signals, **more: Any) -> Any:
    """The same run, in which a session kills or stops the first gateway worker when both serve one."""
    solver.with_name("urls").write_text("")
    solver.with_name("signal").write_text(str(int(sent)))
    solver.with_name("victim").write_text(str(folder / "logs" / "gateway-0.log"))
    return run(folder, agent=f"{solver}:agent", steps=1, rollout=NARROWED, **more)


def require_replaced(folder: Path, solver: Path) -> set[str]:
    """The victim died and its sessions were drawn again; returns the logs of gateway workers."""
    assert not solver.with_name("victim").exists()
    assert list(ledger.faults(folder)) == []
    with Store(folder / "sessions.db") as store:
        assert sum(session.attempt for session in store.sessions()) > 0, "no session was drawn again"
    return {file.name for file in (folder / "logs").glob("gateway-*")}


def urls_of(solver: Path) -> set[str]:
    return {url.partition("/sessions")[0] for url in solver.with_name("urls").read_text().split()}


def nodes_of(folder: Path, role: str) -> set[str]:
    """The nodes that a role's workers were on, by the first lines of their logs; one may not have begun by the end."""
    lines = (file.read_text() for file in (folder / "logs").glob(f"{role}-*.log"))
    return {node for line in lines for node in re.findall(r" on (\S+ \(\w+\)), process", line)[:1]}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_with_gateway_workers_learns_the_same_also_where_one_stops(
    solver: Path, here: tuple[Path, Any], tmp_path: Path
) -> None:
    there = run_with(tmp_path / "run", solver, signal.SIGSTOP, cluster={"gateways": 2, "silence_timeout": SILENCE})
    require_same(tmp_path / "run", there, here)
    assert require_replaced(tmp_path / "run", solver) == {f"gateway-{number}.log" for number in range(3)}
    assert len(urls_of(solver)) > 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_programs_of_environment_workers_reach_gateways_on_the_node_that_the_settings_name_by_https(
    ray_nodes: Any, solver: Path, here: tuple[Path, Any], tmp_path: Path
) -> None:
    near = add_node(ray_nodes, num_cpus=4, resources={"near": 4})
    host = ray_nodes.address.partition(":")[0]
    resources = {"environments": {"custom": {"near": 1}}, "gateway": {"custom": {"far": 1}, "cpus": 0.5}}
    cluster = {"name": "ray", "address": ray_nodes.address, "place_timeout": 60.0, "resources": resources}
    try:
        there = run_with(
            tmp_path / "ray",
            solver,
            signal.SIGKILL,
            cluster=cluster | {"environments": 1, "gateways": 2, "encrypted": True},
            gateway={"host": "node", **certificate(host, tmp_path)},
        )
    finally:
        remove_node(ray_nodes, near)
    require_same(tmp_path / "ray", there, here)
    begun = require_replaced(tmp_path / "ray", solver)  # with the other one the run may end before Ray starts a third
    assert {"gateway-0.log", "gateway-1.log"} <= begun <= {f"gateway-{number}.log" for number in range(3)}
    assert {url.rpartition(":")[0] for url in urls_of(solver)} == {f"https://{host}"}
    (gateways,), (environments,) = nodes_of(tmp_path / "ray", "gateway"), nodes_of(tmp_path / "ray", "environments")
    assert gateways != environments


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_recorded_run_of_a_program_is_run_again_by_gateway_workers(
    solver: Path, here: tuple[Path, Any], tmp_path: Path
) -> None:
    again = run(
        tmp_path / "again",
        agent=f"{solver}:agent",
        steps=1,
        rollout=NARROWED,
        rerun=str(here[0]),
        cluster={"gateways": 1, "environments": 1},
    )
    require_same(tmp_path / "again", again, here)
