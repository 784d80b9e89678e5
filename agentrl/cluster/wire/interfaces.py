"""The network interface of this machine that has an address, so that gloo uses that one.

Gloo listens on the address that the machine's own name stands for, which on many machines is 127.0.1.1, and on machines
with several networks may be any of them. Other nodes reach this one by the address that the cluster knows it by.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct

_SIOCGIFADDR = 0x8915  # Linux; it knows IPv4 alone


def interface_of(host: str) -> str | None:
    """Return the interface that has an IPv4 address; None where none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(answer[20:24]) == host:
                return name
    return None


def use_for_gloo(host: str) -> None:
    """Have gloo, in this process and those that it starts, use the interface of an address, unless it is told which."""
    if "GLOO_SOCKET_IFNAME" not in os.environ and (name := interface_of(host)) is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name
