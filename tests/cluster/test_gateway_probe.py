"""A run's gateways are opened on each node, and called as programs call them, before a run."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from agentrl import cluster
from agentrl.config import ClusterConfig, GatewayConfig
from agentrl.errors import ConfigError, InfraError
from agentrl.train.plan import gateway_probe
from agentrl.train.plan.doctor import DoctorConfig, examine
from agentrl.train.plan.gateway_probe import OpenGateway, call_gateway, links_of, opened_gateway, problems_of_gateways
from tests.cluster.test_programs import certificate
from tests.tools.sandbox.conftest import SMALL, docker

__all__ = ["docker"]


@pytest.mark.parametrize("https", [False, True])
@pytest.mark.slow
async def test_a_gateway_is_reached_by_the_name_that_programs_are_given(https: bool, tmp_path: Path) -> None:
    where = GatewayConfig(host="0.0.0.0", name="localhost", **(certificate("localhost", tmp_path) if https else {}))
    async with opened_gateway(where) as gateway:
        assert str(gateway) == f"{'https' if https else 'http'}://localhost:{gateway.port}"
        assert not gateway.loopback
        await call_gateway(gateway)


async def test_a_certificate_that_is_for_another_name_is_told_with_the_names_that_it_is_for(tmp_path: Path) -> None:
    async with opened_gateway(GatewayConfig(**certificate("agents.test", tmp_path))) as gateway:
        with pytest.raises(InfraError, match=r"not accepted for 127\.0\.0\.1: .*mismatch.*it is for agents\.test, and"):
            await call_gateway(gateway)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"host": "198.51.100.7"}, r"gateway\.host=198\.51\.100\.7: can't listen .*: gateway\.host=node is"),
        ({"host": "no.such.host.invalid"}, r"gateway\.host=no\.such\.host\.invalid: can't listen"),
        ({"tls_certificate": "none.pem", "tls_key": "none.pem"}, r"gateway\.tls_key=none\.pem: not a certificate"),
        ({"tls_certificate": "none.pem"}, r"HTTPS needs both"),
    ],
)
async def test_what_no_gateway_can_listen_with_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        async with opened_gateway(GatewayConfig(**settings)):
            pass


async def test_a_key_of_another_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    files = certificate("localhost", tmp_path) | {"tls_key": certificate("localhost", tmp_path / "other")["tls_key"]}
    with pytest.raises(ConfigError, match="not a certificate and its private key"):
        async with opened_gateway(GatewayConfig(**files)):
            pass


async def test_a_name_that_leads_nowhere_or_elsewhere_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened_gateway(GatewayConfig(name="localhost")) as another:
        with pytest.raises(InfraError, match=r"something else answered \(localhost is .* there\)"):
            await call_gateway(OpenGateway("localhost", another.port, "word", None, loopback=False))
    with pytest.raises(InfraError, match=r"the name no\.such\.host\.invalid \(gateway\.name\) stands for no address"):
        await call_gateway(OpenGateway("no.such.host.invalid", 1, "word", None, loopback=False))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(InfraError, match=r"Connect"):
            await call_gateway(OpenGateway("127.0.0.1", unused.getsockname()[1], "word", None, loopback=False))
        unused.listen(0)
        monkeypatch.setattr(gateway_probe, "CALL_SECONDS", 0.05)
        with pytest.raises(InfraError, match=r"nothing answered within 0\.05 s: a firewall"):
            await call_gateway(OpenGateway("127.0.0.1", unused.getsockname()[1], "word", None, loopback=False))


class Node:
    """A worker of a node from which the gateways of some nodes are not reached."""

    def __init__(self, name: str, loopback: bool = False, unreached: str = "") -> None:
        self.name, self.loopback, self.unreached = name, loopback, unreached

    async def call(self, method: str, *arguments: Any, timeout: float) -> Any:
        if method == "open_gateway":
            return OpenGateway(self.name, 1, "word", None, self.loopback)
        if arguments[0].name == self.unreached:
            raise InfraError("No route to host")
        return None


async def problems(*nodes: Any, **settings: Any) -> list[str]:
    workers: Any = {node.name: node for node in nodes}
    there = [cluster.ClusterNode(node.name, 4.0, 0, {f"only-{node.name}": 1.0}) for node in nodes]
    links = links_of(ClusterConfig.model_validate({"name": "ray", **settings}), there, 8)
    return await problems_of_gateways(workers, links, GatewayConfig(), {}, "", 1.0)


async def test_other_nodes_must_reach_a_gateway_that_is_not_on_the_loopback_interface() -> None:
    assert await problems(Node("a", unreached="b"), Node("b")) == [
        "a does not reach the gateway of b at http://b:1: No route to host"
    ]
    assert await problems(Node("a", unreached="b"), Node("b", loopback=True)) == []
    assert await problems(Node("a", unreached="a", loopback=True)) == [
        "a does not reach its own gateway at http://a:1: No route to host"
    ]


def only(name: str) -> dict[str, Any]:
    return {"custom": {f"only-{name}": 1.0}}


async def test_gateway_workers_are_tried_on_their_nodes_and_from_those_of_the_programs() -> None:
    there = {"gateways": 1, "environments": 1, "resources": {"gateway": only("a"), "environments": only("b")}}
    nodes = (Node("a", unreached="a"), Node("b"), Node("c", unreached="a"))
    assert await problems(*nodes, **there) == []
    assert await problems(Node("a"), Node("b", unreached="a"), Node("c"), **there) == [
        "b does not reach the gateway of a at http://a:1: No route to host"
    ]
    assert await problems(Node("a", loopback=True), Node("b"), **there) == [
        "b does not reach the gateway of a at http://a:1: it listens on the loopback interface"
        "; gateway.host=node listens outside of the node"
    ]
    from_the_run = {"gateways": 1, "resources": {"gateway": only("b")}}
    assert await problems(Node("a", unreached="b"), Node("b"), Node("c", unreached="b"), **from_the_run) == [
        "a does not reach the gateway of b at http://b:1: No route to host"
    ]
    with pytest.raises(ConfigError, match=r"what a worker takes by cluster\.resources\.gateway: 1 CPU, 1 only-x"):
        await problems(Node("a"), gateways=1, resources={"gateway": only("x")})


def test_of_many_nodes_each_has_a_link_at_least() -> None:
    nodes = [cluster.ClusterNode(f"n{number}", 4.0, 0) for number in range(20)]
    links = links_of(ClusterConfig(gateways=1, environments=1), nodes, 8)
    assert {caller for caller, _ in links.pairs} == {host for _, host in links.pairs} == {node.name for node in nodes}


@pytest.mark.slow
def test_the_doctor_tries_gateway_workers(tmp_path: Path) -> None:
    settings = DoctorConfig(folder=tmp_path, megabytes=1, cluster=ClusterConfig(gateways=1))
    assert examine(settings).problems == []
    wrong = settings.model_copy(update={"gateway": GatewayConfig(host="198.51.100.7")})
    assert "gateway.host=198.51.100.7: can't listen" in examine(wrong).problems[0]


@pytest.mark.slow
def test_a_sandbox_reaches_its_nodes_gateway_or_a_problem_says_what_to_set(docker: None, tmp_path: Path) -> None:
    config = DoctorConfig(folder=tmp_path, images=(SMALL.image,), megabytes=1, sandbox_network="host")
    assert examine(config).problems == []
    assert examine(config.model_copy(update={"cluster": ClusterConfig(gateways=1)})).problems == []
    (problem,) = examine(config.model_copy(update={"sandbox_network": "bridge"})).problems
    assert "in the Docker network 'bridge' does not reach the gateway at http://127.0.0.1:" in problem
    assert problem.endswith("gateway.host=node listens outside of the node")
