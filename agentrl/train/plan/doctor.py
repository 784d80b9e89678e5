"""`agentrl doctor`: what a run needs of this machine, or of those of a cluster, tried before a run.

Without a cluster, what this machine has and lacks is told besides (`this_machine`).

A role is started on every node, as a run's parts are: by Ray, on free ports of the node's address. It says what the
node has, reads a file that this process has written into the folder that all must share, and sends megabytes to the
other nodes over the connections that a run's workers use. A gateway is opened on each as a run opens one,
where one is asked for (`gateway_probe`): a run without agent programs has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import PositiveFloat, PositiveInt

from agentrl import cluster
from agentrl.cluster import Address, Cluster, ClusterNode, Resources, Role, Worker, connect
from agentrl.cluster.placement.assignment import Assignment, Place
from agentrl.cluster.placement.gpus import query_gpus
from agentrl.common import cores
from agentrl.config import ClusterConfig, GatewayConfig
from agentrl.config.sections import NAMED, Section
from agentrl.errors import AgentRLError, ConfigError, brief
from agentrl.train.plan.gateway_probe import GatewayHost, links_of, pairs_of, problems_of_gateways
from agentrl.train.plan.memory import GIB
from agentrl.train.plan.this_machine import Feature, find_features

PROBE = "probe"
RAY = ("gcs_server", "raylet", "ray.util.client.server", "dashboard/dashboard.py", "dashboard/agent.py")
"""The words in the commands of Ray's own processes; its workers' ports go with them."""
MOST_PAIRS = 56
"""Links that are measured: all pairs of up to 8 nodes; of more, each node's to the next one."""
_LISTENING = "0A"
_PROC = Path("/proc")


class DoctorConfig(Section):
    """The settings of `agentrl doctor`."""

    cluster: Annotated[ClusterConfig, NAMED] = ClusterConfig()
    """The machines, as in a run."""
    folder: Path = Path("runs")
    """The folder of runs, which all nodes must share."""
    megabytes: PositiveInt = 64
    """The megabytes that are sent from node to node to measure a link."""
    timeout: PositiveFloat = 120.0
    """Seconds that starting on the nodes may take, and each call there."""
    images: tuple[str, ...] = ()
    """Sandbox images that every node with Docker must have."""
    send_images: bool = False
    """True: a node that lacks one of them gets it from a node that has it, without a registry."""
    image_timeout: PositiveFloat = 3600.0
    """Seconds that sending an image to a node may take."""
    gateway: GatewayConfig = GatewayConfig()
    """The address at which the gateways of agent programs listen, as in a run; tried where any of it, or
    cluster.gateways, is set."""
    sandbox_network: str | None = None
    """The Docker network of sandboxes that are to reach a gateway; None: none are."""


@dataclass(frozen=True)
class Equipment:
    """A node's equipment.

    Attributes:
        cpus: cores that a process may use.
        memory: of the node, in bytes.
        gpus: a line of `nvidia-smi` for each.
        docker: whether a daemon answers.
        free: bytes that are free where the folder is; None where the folder is not seen.
        ray: the addresses at which Ray listens for other machines.
    """

    cpus: int
    memory: int
    gpus: Sequence[str]
    docker: bool
    free: int | None
    ray: Sequence[str] = ()

    def __str__(self) -> str:
        gpus = ", ".join(dict.fromkeys(f"{self.gpus.count(one)} x {one}" for one in self.gpus)) or "no GPU"
        docker = "Docker answers" if self.docker else "no Docker"
        disk = "does not see the folder" if self.free is None else f"{self.free / GIB:.3g} GiB free in the folder"
        return f"{self.cpus} CPUs, {self.memory / GIB:.3g} GiB, {gpus}; {docker}; {disk}"


class Probe(GatewayHost):
    """A worker on each node that is examined."""

    def equipment(self, file: str, content: bytes) -> Equipment:
        """Return the node's equipment; the driver has written `content` into `file`, in the folder that all share."""
        from agentrl.tools.sandbox.docker import daemon

        path = Path(file)
        try:
            free = shutil.disk_usage(path.parent).free if path.read_bytes() == content else None
        except OSError:
            free = None
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        gpus = query_gpus("name,memory.total,driver_version")
        ray = open_ports(RAY)
        return Equipment(len(cores.list_allowed()), memory, gpus, daemon.available(), free, ray)

    def take(self, data: bytes) -> int:
        """Receive data and return its length."""
        return len(data)

    async def send(self, address: Address, megabytes: int, timeout: float) -> float:
        """Send zeros to another node's probe; the rate in bytes each second, connection and a first call apart."""
        other = await asyncio.to_thread(connect, address)
        try:
            await other.call("take", b"", timeout=timeout)
            data, began = bytes(megabytes << 20), time.monotonic()
            await other.call("take", data, timeout=timeout)
            return len(data) / (time.monotonic() - began)
        finally:
            other.close()


@dataclass
class DoctorReport:
    """The results of all checks.

    Attributes:
        nodes: what each node that answered has, by name.
        links: bytes each second from a node to another, by their names.
        problems: what would stop a run, or slow it for a reason that can be mended; sentences.
        sent: which images were sent where; sentences.
        features: what this machine has and lacks, where it is the only one; what is missing stops only what needs it.
    """

    nodes: dict[str, Equipment] = field(default_factory=dict)
    links: dict[tuple[str, str], float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    features: list[Feature] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """Yield the report's lines."""
        yield from map(str, self.features)
        for name, equipment in self.nodes.items():
            yield f"{name}: {equipment}"
            if equipment.ray:
                yield f"{name}: Ray listens at {', '.join(equipment.ray)}: whoever reaches these can run commands"
        for (one, other), rate in self.links.items():
            yield f"{one} -> {other}: {rate / 1e9:.3g} GB/s"
        yield from self.sent
        yield from (f"problem: {problem}" for problem in self.problems)
        if not self.problems:
            yield "nothing stands in the way of a run"


def examine(config: DoctorConfig) -> DoctorReport:
    """Try all nodes of a cluster.

    Raises:
        ConfigError: no cluster answers at its address, or it has no room for a probe on each node.
        MissingExtra: it needs Ray, which is not installed.
    """
    report = DoctorReport()
    if config.cluster.name == "local":
        report.features += find_features(config.folder)
    with cluster.open_cluster(config.cluster, None) as opened:
        nodes = opened.nodes()
        report.problems += [f"{node.name} does not answer" for node in nodes if not node.alive]
        asyncio.run(_examine(opened, [node for node in nodes if node.alive], config, report))
    return report


async def _examine(opened: Cluster, nodes: Sequence[ClusterNode], config: DoctorConfig, report: DoctorReport) -> None:
    if config.cluster.name == "ray":
        from agentrl.cluster.ray.cluster import RayCluster

        assert isinstance(opened, RayCluster)
        places = tuple(Place(PROBE, number, node.name) for number, node in enumerate(nodes))
        await asyncio.to_thread(opened.reserve, Assignment(places), {PROBE: Resources()}, config.timeout)
    role = Role(PROBE, f"{__name__}:Probe", threads=1)
    workers = {node.name: opened.spawn(role) for node in nodes}
    file, content = config.folder.absolute() / f".doctor-{secrets.token_hex(4)}", secrets.token_bytes(16)
    try:
        config.folder.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    except OSError as error:
        report.problems.append(f"folder={str(config.folder)!r} can't be written: {error}; folder=… tries another")
        return
    try:
        probes = (_equipment(worker, file, content, config.timeout) for worker in workers.values())
        answers = await asyncio.gather(*probes, return_exceptions=True)
    finally:
        file.unlink()
    for node, answer in zip(nodes, answers, strict=True):
        report.problems += _problems(node, answer, config)
        if isinstance(answer, Equipment):
            report.nodes[node.name] = answer
    for one, other in pairs_of(list(report.nodes), MOST_PAIRS):
        words = (workers[other].address, config.megabytes, config.timeout)
        try:
            report.links[one, other] = await workers[one].call("send", *words, timeout=2 * config.timeout)
        except AgentRLError as error:
            report.problems.append(f"{one} does not reach {other}: {brief(str(error))}")
    hosts = {name: workers[name] for name, has in report.nodes.items() if has.docker}
    if config.sandbox_network or config.gateway.model_fields_set or config.cluster.gateways:
        sandboxes = dict.fromkeys(hosts if config.sandbox_network else (), next(iter(config.images), None))
        there = [node for node in nodes if node.name in report.nodes]
        how = (config.gateway, sandboxes, config.sandbox_network or "", config.timeout)
        try:
            links = links_of(config.cluster, there, MOST_PAIRS)
            report.problems += await problems_of_gateways(workers, links, *how)
        except ConfigError as error:
            report.problems.append(str(error))
    for image in config.images:
        try:
            await _compare_image(image, hosts, config, report)
        except AgentRLError as error:
            report.problems.append(f"the image {image!r}: {brief(str(error))}")


async def _compare_image(image: str, hosts: Mapping[str, Worker], config: DoctorConfig, report: DoctorReport) -> None:
    """Look an image up on all nodes with Docker; send it to those that lack it, if that is wanted."""
    calls = (worker.call("image_id", image, timeout=config.timeout) for worker in hosts.values())
    found: dict[str, str | None] = dict(zip(hosts, await asyncio.gather(*calls), strict=True))
    owners = {name: number for name, number in found.items() if number is not None}
    if not owners:
        report.problems.append(f"no node has the image {image!r}" if hosts else f"no node has Docker for {image!r}")
        return
    if len(set(owners.values())) > 1:
        each = ", ".join(f"{number} on {name}" for name, number in owners.items())
        report.problems.append(f"nodes have different images under the name {image!r}: {each}")
    source = next(iter(owners))
    for name in (name for name in hosts if name not in owners):
        if not config.send_images:
            report.problems.append(f"{name} does not have the image {image!r}; send_images=true sends it from {source}")
            continue
        words = (image, hosts[name].address, config.image_timeout)
        count = await hosts[source].call("send_image", *words, timeout=config.image_timeout)
        report.sent.append(f"{image}: {count >> 20} MiB were sent from {source} to {name}")


async def _equipment(worker: Worker, file: Path, content: bytes, timeout: float) -> Equipment:
    await worker.ready(timeout)
    found: Equipment = await worker.call("equipment", str(file), content, timeout=timeout)
    return found


def _problems(node: ClusterNode, found: Equipment | BaseException, config: DoctorConfig) -> Iterator[str]:
    """Yield the faults of a node, given what its probe answered or raised."""
    if isinstance(found, AgentRLError):
        yield f"{node.name}: {brief(str(found))}"
    elif isinstance(found, BaseException):
        raise found
    else:
        if found.free is None:
            yield f"{node.name} does not see the files of folder={config.folder}, which all nodes must share"
        if len(found.gpus) < node.gpus:
            yield f"{node.name} has {node.gpus} GPUs in Ray's count, and nvidia-smi shows {len(found.gpus)}"


def open_ports(words: Iterable[str]) -> list[str]:
    """Return the addresses, reachable by others, of processes whose command has one of these words."""
    wanted = set(words)
    found = set[str]()
    for process in _PROC.glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode(errors="replace")
            if any(word in command for word in wanted):
                own = _inodes(process)
                found |= {shown for inode, shown in _listening(process) if inode in own}
        except OSError:  # it has ended, or is another user's
            continue
    return sorted(found)


def _inodes(process: Path) -> set[str]:
    links = []
    for file in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            links.append(os.readlink(file))
    return {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:[")}


def _listening(process: Path) -> Iterator[tuple[str, str]]:
    """Sockets that listen beyond the loopback interface: the inode, and the address."""
    for table in ("tcp", "tcp6"):
        for line in (process / "net" / table).read_text().splitlines()[1:]:
            fields = line.split()
            address, _, port = fields[1].partition(":")
            if fields[3] == _LISTENING and not (host := _address(address)).is_loopback:
                yield fields[9], f"[{host}]:{int(port, 16)}" if host.version == 6 else f"{host}:{int(port, 16)}"


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address as the kernel writes it: words of 32 bits, each in the machine's order."""
    words = (int(text[at : at + 8], 16) for at in range(0, len(text), 8))
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    found = ipaddress.ip_address(packed)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found
