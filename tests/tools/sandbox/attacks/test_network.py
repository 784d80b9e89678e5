"""Egress: a listener of ours on this machine that a container with a network reaches, and the hardened one does not.

Nothing here sends a packet to an address outside this machine: the network is made by the test, internal (it routes
nowhere), and its only address that is spoken to is the bridge's own, where the test listens.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agentrl.tools.sandbox.docker.backend import DockerSandbox
from agentrl.tools.sandbox.docker.daemon import daemon
from agentrl.tools.sandbox.runner.loop import blocking
from agentrl.tools.sandbox.spec import SandboxSpec
from tests.tools.sandbox.conftest import SMALL, Make

pytestmark = pytest.mark.slow

IPV6_FREEBIND = 78  # linux/in6.h
TALK = """
import socket, sys
kind, address, port, word = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4].encode()
family = socket.AF_INET6 if ":" in address else socket.AF_INET
try:
    if kind == "tcp":
        s = socket.socket(family, socket.SOCK_STREAM); s.settimeout(30); s.connect((address, port)); s.sendall(word)
    else:
        if kind == "dns":  # a question for WORD.test, type A
            word = bytes.fromhex("123401000001000000000000") + bytes([len(word)]) + word + b"\\4test\\0\\0\\1\\0\\1"
        s = socket.socket(family, socket.SOCK_DGRAM); s.settimeout(30); s.sendto(word, (address, port))
    print("sent", s.recv(16))
except OSError as error: print("failed", type(error).__name__, error.errno)
"""


@dataclass
class Listener:
    """What arrives at the bridge's addresses."""

    network: str
    addresses: dict[str, str]
    port: int
    heard: list[bytes] = field(default_factory=list)


@pytest.fixture(scope="module")
def listener(docker: None) -> Iterator[Listener]:
    from docker.types import IPAMConfig, IPAMPool

    api = daemon().api
    name = f"agentrl-test-{secrets.token_hex(4)}"
    tail = secrets.randbelow(200) + 20
    pools = [
        IPAMPool(subnet=f"10.231.{tail}.0/24", gateway=f"10.231.{tail}.1"),
        IPAMPool(subnet=f"fd17:ac{tail:02x}::/64", gateway=f"fd17:ac{tail:02x}::1"),
    ]
    network = api.create_network(
        name, driver="bridge", internal=True, enable_ipv6=True, ipam=IPAMConfig(pool_configs=pools)
    )
    sockets: list[socket.socket] = []
    try:
        found = Listener(name, {"4": f"10.231.{tail}.1", "6": f"fd17:ac{tail:02x}::1"}, 0)
        for family, address in ((socket.AF_INET, found.addresses["4"]), (socket.AF_INET6, found.addresses["6"])):
            sockets += [_listen(family, kind, address, found) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)]
        yield found
    finally:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        api.remove_network(network["Id"])


def _listen(family: socket.AddressFamily, kind: socket.SocketKind, address: str, into: Listener) -> socket.socket:
    one = socket.socket(family, kind)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family is socket.AF_INET6:  # the bridge's address is tentative until a container is on it
        one.setsockopt(socket.IPPROTO_IPV6, IPV6_FREEBIND, 1)
    one.bind((address, into.port))
    into.port = one.getsockname()[1]
    if kind is socket.SOCK_STREAM:
        one.listen(8)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                if kind is socket.SOCK_STREAM:
                    connection, _ = one.accept()
                    with connection:
                        into.heard.append(connection.recv(100))
                        connection.sendall(b"hello")
                else:
                    data, sender = one.recvfrom(100)
                    if not data:
                        return
                    into.heard.append(data)
                    one.sendto(b"hello", sender)

    threading.Thread(target=serve, daemon=True).start()
    return one


@pytest.fixture(scope="module")
def online(make_shared: Make, listener: Listener) -> DockerSandbox:
    sandbox = make_shared(SMALL.model_copy(update={"network": listener.network}))
    for _ in range(100):  # until duplicate address detection is over, on both sides
        here = Path("/proc/net/if_inet6").read_text()
        there = blocking(sandbox.exec("cat /proc/net/if_inet6"), 30).stdout.decode()
        lines = [line.split() for line in (here + there).splitlines() if line.startswith("fd17ac")]
        if len(lines) >= 2 and not any(int(fields[4], 16) & 0x40 for fields in lines):
            break
        time.sleep(0.1)
    return sandbox


@pytest.mark.parametrize(("kind", "version"), [("tcp", "4"), ("udp", "4"), ("dns", "4"), ("tcp", "6"), ("udp", "6")])
async def test_a_hardened_sandbox_does_not_reach_what_a_networked_one_does(
    kind: str, version: str, listener: Listener, online: DockerSandbox, shared: DockerSandbox
) -> None:
    target = [kind, listener.addresses[version], str(listener.port)]
    reached = await online.exec(["python3", "-c", TALK, *target, "fromonline"], timeout=60)
    assert reached.stdout == b"sent b'hello'\n", (
        "the target is not reachable even with a network: the test proves nothing"
    )
    assert any(b"fromonline" in data for data in listener.heard)
    tried = await shared.exec(["python3", "-c", TALK, *target, "fromjail"], timeout=60)
    assert tried.stdout.startswith(b"failed OSError"), tried
    assert not any(b"fromjail" in data for data in listener.heard)


async def test_the_hardened_sandbox_has_no_interface_but_loopback_and_no_route_to_anywhere(
    shared: DockerSandbox, online: DockerSandbox
) -> None:
    """So none to a cloud's metadata address either: the routing tables say it, nothing is sent."""
    tables = "ls /sys/class/net; tail -n +2 /proc/net/route; grep -v ' lo$' /proc/net/ipv6_route; true"
    assert (await shared.exec(tables)).stdout == b"lo\n"
    assert len((await online.exec(tables)).stdout.splitlines()) > 2, "these tables would not show a route"


async def test_the_hosts_loopback_and_abstract_sockets_are_out_of_reach(shared: DockerSandbox) -> None:
    name = f"\0agentrl-{secrets.token_hex(6)}"
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as abstract:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        abstract.bind(name)
        abstract.listen()
        with socket.create_connection(tcp.getsockname(), 2), socket.socket(socket.AF_UNIX) as here:
            here.connect(name)  # from here, both can be reached
        program = (
            f"import socket\nfor s, a in ((socket.socket(), ('127.0.0.1', {tcp.getsockname()[1]})), "
            f"(socket.socket(socket.AF_UNIX), {name!r})):\n    try: s.connect(a); print('reached')\n"
            "    except ConnectionRefusedError: print('refused')"
        )
        assert (await shared.exec(["python3", "-c", program])).stdout == b"refused\nrefused\n"


async def test_an_allow_list_lets_through_what_it_names_and_nothing_else(make: Make) -> None:
    heard: list[bytes] = []
    with socket.socket() as target:
        target.bind(("127.0.0.1", 0))
        target.listen(8)
        port = target.getsockname()[1]

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = target.accept()
                    with connection:
                        heard.append(connection.recv(1000))
                        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 300_000)

        threading.Thread(target=serve, daemon=True).start()
        spec = SandboxSpec.model_validate({**SMALL.model_dump(), "egress": [f"127.0.0.1:{port}"]})
        sandbox = make(spec)
        program = """
import os, socket, sys
host, port = os.environ["HTTPS_PROXY"].removeprefix("http://").split(":")
for target in sys.argv[1:]:
    s = socket.create_connection((host, int(port)), 30); s.settimeout(30)
    s.sendall(f"CONNECT {target} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode())
    status = s.recv(1000).split(b"\\r\\n")[0]
    size = 0
    if b"200" in status:
        s.sendall(b"GET / through")
        while data := s.recv(65536): size += len(data)
    print(status.decode(), size)
"""
        result = await sandbox.exec(
            ["python3", "-c", program, f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}", "localhost:22"], timeout=120
        )
        lines = result.stdout.decode().splitlines()
        assert lines[0].startswith("HTTP/1.1 200")
        assert int(lines[0].split()[-1]) == 300_000 + 19
        assert lines[1].startswith("HTTP/1.1 403")
        assert lines[2].startswith("HTTP/1.1 403")
        assert heard == [b"GET / through"]
        assert (await sandbox.inspect())["HostConfig"]["NetworkMode"] == "none"
        target.shutdown(socket.SHUT_RDWR)
