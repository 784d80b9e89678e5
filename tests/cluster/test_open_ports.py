"""What others can reach of a process, from the kernel's tables."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from agentrl.train.plan.doctor import open_ports


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_port_on_all_addresses_is_named_and_one_on_the_loopback_interface_is_not() -> None:
    own = Path("/proc/self/cmdline").read_bytes().decode()
    with socket.create_server(("0.0.0.0", 0)) as everywhere, socket.create_server(("127.0.0.1", 0)) as here:
        found = open_ports([own])
        assert f"0.0.0.0:{everywhere.getsockname()[1]}" in found
        assert not any(address.endswith(f":{here.getsockname()[1]}") for address in found)
    assert open_ports(["no command has this in it \u2603"]) == []
