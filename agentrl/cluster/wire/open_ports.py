"""Ports of this machine that some processes hold open for others: from the kernel's tables, where they may be read."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

_LISTENING = "0A"
_PROC = Path("/proc")


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
