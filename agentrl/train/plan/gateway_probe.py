"""A test of a run's gateways: nodes open them where a run does, and call them as its programs do.

What is served answers with a word that only the opened gateway knows: a name may lead to another machine.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import secrets
import socket
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from agentrl.cluster import ClusterNode, Resources, Worker
from agentrl.cluster.placement.inventory import override_resources
from agentrl.config import ClusterConfig, GatewayConfig
from agentrl.errors import AgentRLError, ConfigError, InfraError, brief
from agentrl.rollout.workers import environment_workers as environments
from agentrl.rollout.workers import gateway_workers
from agentrl.rollout.workers.gateways import listening_place
from agentrl.tools.sandbox.base import DEFAULT_IMAGE
from agentrl.tools.sandbox.docker.delivery import ImageHost
from agentrl.tools.sandbox.spec import SandboxSpec

CALL_SECONDS = 30.0
"""Seconds that a gateway may take to answer."""
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_FROM_SHELL = "exec 3<>/dev/tcp/{name}/{port} && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && head -c 4096 <&3"


@dataclass(frozen=True)
class OpenGateway:
    """A gateway that a node has opened.

    Attributes:
        name: the host name or address that programs are given.
        port: where it listens.
        word: what it answers.
        certificate: the PEM file that it serves HTTPS with; None is HTTP.
        loopback: whether other machines can't reach it, by its settings.
    """

    name: str
    port: int
    word: str
    certificate: str | None
    loopback: bool

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return f"{'https' if self.certificate else 'http'}://{name}:{self.port}"


class GatewayHost(ImageHost):
    """Opens a gateway on a node, and calls those of others."""

    def __init__(self) -> None:
        super().__init__()
        self._opened = AsyncExitStack()

    async def open_gateway(self, where: GatewayConfig) -> OpenGateway:
        """Listen as a run's gateway does, until `close`.

        Raises:
            ConfigError: the certificate and its key can't be used, or nothing can listen there.
        """
        return await self._opened.enter_async_context(opened_gateway(where))

    async def call_gateway(self, gateway: OpenGateway) -> None:
        """Call a gateway by the name that programs are given."""
        await call_gateway(gateway)

    async def call_from_sandbox(self, gateway: OpenGateway, network: str, image: str | None) -> None:
        """Call a gateway from a sandbox of this host in a Docker network; with HTTPS its port is enough."""
        from agentrl.tools.sandbox.docker.backend import create_docker

        sandbox = await create_docker(SandboxSpec(image=image or DEFAULT_IMAGE, network=network))
        try:
            done = await sandbox.exec(_FROM_SHELL.format(name=gateway.name, port=gateway.port), timeout=CALL_SECONDS)
        finally:
            await sandbox.close()
        answered = gateway.certificate is not None or gateway.word.encode() in done.stdout
        if done.exit_code or not answered:
            said = brief(done.stderr.decode(errors="replace").strip())
            raise InfraError(said or f"nothing answered within {CALL_SECONDS:g} s")

    async def close(self) -> None:
        await self._opened.aclose()


@asynccontextmanager
async def opened_gateway(where: GatewayConfig) -> AsyncIterator[OpenGateway]:
    """Listen as a run's gateway does, and answer with a word of its own; raises as `GatewayHost.open_gateway`."""
    from agentrl.sessions.gateway.http.listener import listening, serve_app
    from agentrl.sessions.gateway.limits import Limits

    host, name, tls = listening_place(where)
    try:
        listener = await asyncio.to_thread(listening, host, 0)
    except InfraError as error:
        raise ConfigError(
            f"gateway.host={where.host}: {error}; it must be an address of the node: gateway.host=node is, on every one"
        ) from None
    word = secrets.token_hex(16)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", str(len(word)).encode()), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": word.encode()})

    address, port = listener.getsockname()[:2]
    certificate = await asyncio.to_thread(Path(tls.certificate).read_text) if tls else None
    with listener:
        async with serve_app(answer, listener, Limits(), tls):
            yield OpenGateway(name, port, word, certificate, ipaddress.ip_address(address).is_loopback)


async def call_gateway(gateway: OpenGateway) -> None:
    """Call a gateway as a program does."""
    name = gateway.name
    try:
        async with asyncio.timeout(CALL_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(name, gateway.port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError):
        raise InfraError(f"the name {name} (gateway.name) stands for no address there") from None
    address = found[0][4][0]
    at = "" if address == name else f" ({name} is {address} there)"
    try:
        async with asyncio.timeout(CALL_SECONDS):
            answer = await _answer(gateway, _trusting(gateway))
    except ssl.SSLCertVerificationError as error:
        covered = await _covered_names(gateway)
        raise InfraError(
            f"the certificate of gateway.tls_certificate is not accepted for {name}: {error.verify_message.rstrip('.')}"
            f"; it is for {covered}, and gateway.name, or the gateway's address without one, must be among these{at}"
        ) from None
    except TimeoutError:
        raise InfraError(f"nothing answered within {CALL_SECONDS:g} s{at}: a firewall may drop it") from None
    except OSError as error:
        raise InfraError(f"{error.strerror or error}{at}") from None
    if not answer.endswith(gateway.word.encode()):
        raise InfraError(f"something else answered{at}: without gateway.name programs are given its node's address")


async def _answer(gateway: OpenGateway, trusting: ssl.SSLContext | None) -> bytes:
    reader, writer = await asyncio.open_connection(gateway.name, gateway.port, ssl=trusting)
    try:
        writer.write(f"GET / HTTP/1.1\r\nHost: {gateway.name}\r\nConnection: close\r\n\r\n".encode())
        return await reader.read(-1)
    finally:
        writer.close()


def _trusting(gateway: OpenGateway) -> ssl.SSLContext | None:
    """A context that trusts the gateway's certificate under the names that it is for; None is HTTP."""
    if gateway.certificate is None:
        return None
    context = ssl.create_default_context(cadata="\n".join(_PEM.findall(gateway.certificate)))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


async def _covered_names(gateway: OpenGateway) -> str:
    """The names and addresses that a certificate is for, as far as it is valid otherwise."""
    trusting = _trusting(gateway)
    assert trusting is not None
    trusting.check_hostname = False
    try:
        async with asyncio.timeout(CALL_SECONDS):
            _, writer = await asyncio.open_connection(gateway.name, gateway.port, ssl=trusting)
    except (OSError, TimeoutError):
        return "no name, since it is not valid"
    names = writer.get_extra_info("peercert").get("subjectAltName", ())
    writer.close()
    return ", ".join(name for _, name in names) or "no name"


@dataclass(frozen=True)
class Links:
    """The gateways that are tried, and the nodes that try them.

    Attributes:
        pairs: the node of a program, and that of a gateway which it is to reach.
        apart: whether gateways are workers of their own; else each program's is on its node, and others are called
            where they can be at all.
    """

    pairs: Sequence[tuple[str, str]]
    apart: bool = False

    @property
    def hosts(self) -> list[str]:
        """The nodes with a gateway."""
        return list(dict.fromkeys(host for _, host in self.pairs))


def pairs_of(names: Sequence[str], most: int) -> list[tuple[str, str]]:
    """All pairs of nodes; where these are more than `most`, each node and the next one."""
    pairs = [(one, other) for one in names for other in names if one != other]
    return pairs if len(pairs) <= most else list(zip(names, [*names[1:], names[0]], strict=True))


def links_of(config: ClusterConfig, nodes: Sequence[ClusterNode], most: int) -> Links:
    """Return the links by which a run calls its gateways; at most `most` of those between nodes."""
    names = [node.name for node in nodes]
    if not config.gateways:
        return Links([*((name, name) for name in names), *pairs_of(names, most)])
    hosts = _with_room("gateway", Resources(cpus=gateway_workers.CPUS), config, nodes)
    callers = names[:1]  # the run's process
    if config.environments:
        callers = _with_room("environments", Resources(cpus=environments.CPUS), config, nodes)
    pairs = [(one, other) for one in callers for other in hosts]
    if len(pairs) > most:
        count = max(len(callers), len(hosts))
        pairs = list(islice(zip(cycle(callers), cycle(hosts), strict=False), count))
    return Links(pairs, apart=True)


def _with_room(role: str, own: Resources, config: ClusterConfig, nodes: Sequence[ClusterNode]) -> list[str]:
    takes = override_resources(role, own, config.resources)
    found = [node.name for node in nodes if node.holds(takes)]
    if not found:
        raise ConfigError(f"no node has what a worker takes by cluster.resources.{role}: {takes}")
    return found


async def problems_of_gateways(
    workers: Mapping[str, Worker],
    links: Links,
    where: GatewayConfig,
    sandboxes: Mapping[str, str | None],
    network: str,
    timeout: float,
) -> list[str]:
    """Open the gateways of nodes, and call them as programs do: from other nodes, and from sandboxes.

    Args:
        workers: `GatewayHost`s, by their nodes' names.
        links: which gateways are called from where.
        where: the settings of the run's gateways.
        sandboxes: the nodes whose sandboxes are to reach them, and the image of one; None is the default image.
        network: the sandboxes' Docker network.
        timeout: seconds that a call to a node may take.

    Returns:
        A sentence for each thing that is wrong.
    """
    problems: list[str] = []
    opened: dict[str, OpenGateway] = {}
    for host in links.hosts:
        try:
            opened[host] = await workers[host].call("open_gateway", where, timeout=timeout)
        except AgentRLError as error:
            problems.append(f"{host}: {brief(str(error))}")
    for caller, host in links.pairs:
        gateway = opened.get(host)
        if gateway is None or (gateway.loopback and caller != host and not links.apart):
            continue
        outside = "; gateway.host=node listens outside of the node" * gateway.loopback
        what = "its own gateway" if caller == host else f"the gateway of {host}"
        try:
            if gateway.loopback and caller != host:
                raise InfraError("it listens on the loopback interface")
            await workers[caller].call("call_gateway", gateway, timeout=timeout)
        except AgentRLError as error:
            also = outside if caller != host else ""
            problems.append(f"{caller} does not reach {what} at {gateway}: {brief(str(error))}{also}")
            continue
        if caller not in sandboxes or not (links.apart or caller == host):
            continue
        try:
            await workers[caller].call("call_from_sandbox", gateway, network, sandboxes[caller], timeout=timeout)
        except AgentRLError as error:
            problems.append(
                f"a sandbox on {caller} in the Docker network {network!r} does not reach the gateway at {gateway}: "
                f"{brief(str(error))}{outside}"
            )
    return problems
