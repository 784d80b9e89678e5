"""A run's gateways are opened on each node, and called as programs call them, before a run."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import GatewayConfig
from agentrl.errors import ConfigError, InfraError
from agentrl.train import gateway_probe
from agentrl.train.doctor import DoctorConfig, examine
from agentrl.train.gateway_probe import OpenGateway, called, opened_gateway, problems_of_gateways
from tests.cluster.test_programs import certificate
from tests.tools.sandbox.conftest import SMALL, docker

__all__ = ["docker"]


@pytest.mark.parametrize("https", [False, True])
async def test_a_gateway_is_reached_by_the_name_that_programs_are_given(https: bool, tmp_path: Path) -> None:
    where = GatewayConfig(host="0.0.0.0", name="localhost", **(certificate("localhost", tmp_path) if https else {}))
    async with opened_gateway(where) as gateway:
        assert str(gateway) == f"{'https' if https else 'http'}://localhost:{gateway.port}"
        assert not gateway.loopback
        await called(gateway)


async def test_a_certificate_that_is_for_another_name_is_told_with_the_names_that_it_is_for(tmp_path: Path) -> None:
    async with opened_gateway(GatewayConfig(**certificate("agents.test", tmp_path))) as gateway:
        with pytest.raises(InfraError, match=r"not accepted for 127\.0\.0\.1: .*mismatch.*it is for agents\.test, and"):
            await called(gateway)


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
            await called(OpenGateway("localhost", another.port, "word", None, loopback=False))
    with pytest.raises(InfraError, match=r"the name no\.such\.host\.invalid \(gateway\.name\) stands for no address"):
        await called(OpenGateway("no.such.host.invalid", 1, "word", None, loopback=False))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(InfraError, match=r"Connect"):
            await called(OpenGateway("127.0.0.1", unused.getsockname()[1], "word", None, loopback=False))
        unused.listen(0)
        monkeypatch.setattr(gateway_probe, "CALL_SECONDS", 0.05)
        with pytest.raises(InfraError, match=r"nothing answered within 0\.05 s: a firewall"):
            await called(OpenGateway("127.0.0.1", unused.getsockname()[1], "word", None, loopback=False))


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


async def problems(*nodes: Any) -> list[str]:
    names = [node.name for node in nodes]
    pairs = [(one, other) for one in names for other in names if one != other]
    workers = {node.name: node for node in nodes}
    return await problems_of_gateways(workers, pairs, GatewayConfig(), {}, "", 1.0)


async def test_other_nodes_must_reach_a_gateway_that_is_not_on_the_loopback_interface() -> None:
    assert await problems(Node("a", unreached="b"), Node("b")) == [
        "a does not reach the gateway of b at http://b:1: No route to host"
    ]
    assert await problems(Node("a", unreached="b"), Node("b", loopback=True)) == []
    assert await problems(Node("a", unreached="a", loopback=True)) == [
        "a does not reach its own gateway at http://a:1: No route to host"
    ]


@pytest.mark.slow
def test_a_sandbox_reaches_its_nodes_gateway_or_a_problem_says_what_to_set(docker: None, tmp_path: Path) -> None:
    config = DoctorConfig(folder=tmp_path, images=(SMALL.image,), megabytes=1, sandbox_network="host")
    assert examine(config).problems == []
    (problem,) = examine(config.model_copy(update={"sandbox_network": "bridge"})).problems
    assert "in the Docker network 'bridge' does not reach the gateway at http://127.0.0.1:" in problem
    assert problem.endswith("gateway.host=node listens outside of the node")
