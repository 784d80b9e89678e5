"""An egress allow-list without a network: an HTTP proxy between the sandbox's loopback address and this machine.

The runner listens on the sandbox's own loopback address and forwards each connection through its stream; the proxy
here reads one request line, checks the target against the list, connects from this machine and relays. The container
has no network interface, so the proxy can't be bypassed. Only `CONNECT host:port` is supported (HTTPS, and anything
else that a client tunnels); names are resolved here, and a name that resolves to a private, loopback or link-local
address (a cloud's metadata service) is refused unless the list names that address itself.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket

from agentrl.common.concurrency import hold_task
from agentrl.tools.sandbox.runner.client import Channel, RunnerClient

logger = logging.getLogger(__name__)

PORT = 3128
HEADER_BYTES = 8192
CONNECT_TIMEOUT = 15.0
IDLE_TIMEOUT = 300.0


def proxy_env() -> dict[str, str]:
    """The variables by which programs in the sandbox find the proxy."""
    url = f"http://127.0.0.1:{PORT}"
    return dict.fromkeys(("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY"), url)


async def serve(client: RunnerClient, allowed: tuple[str, ...]) -> None:
    """Serve a sandbox's proxy for as long as its runner lives."""
    connections: set[asyncio.Task[None]] = set()

    def accept(channel: Channel) -> None:
        hold_task(_connection(channel, allowed), connections)

    client.on_accept = accept
    await client.listen(PORT)


def is_permitted(host: str, port: int, allowed: tuple[str, ...]) -> bool:
    """Return whether the list names host:port, itself or as *.domain:port."""
    name = host.lower().rstrip(".")
    for entry in allowed:
        pattern, _, allowed_port = entry.lower().rpartition(":")
        if int(allowed_port) != port:
            continue
        if name == pattern or (pattern.startswith("*.") and name.endswith(pattern[1:]) and name != pattern[2:]):
            return True
    return False


async def _connection(channel: Channel, allowed: tuple[str, ...]) -> None:
    writer = None
    try:
        incoming = channel.chunks()
        head = b""
        async with asyncio.timeout(CONNECT_TIMEOUT):
            async for chunk in incoming:
                head += chunk
                if b"\r\n\r\n" in head or len(head) > HEADER_BYTES:
                    break
            request, _, early = head.partition(b"\r\n\r\n")
            target = _target(request)
            if target is None or not is_permitted(*target, allowed):
                logger.info("egress refused: %s", request.split(b"\r\n")[0][:200])
                await _refuse(channel, 403, "this sandbox may not reach that")
                return
            address = await _resolve(*target, allowed)
            if address is None:
                await _refuse(channel, 403, "that name resolves to an address that is not public")
                return
            reader, writer = await asyncio.open_connection(address, target[1])
        await channel.feed(b"HTTP/1.1 200 Connection established\r\n\r\n")
        writer.write(early)
        outward = asyncio.ensure_future(_outward(channel, writer))
        try:
            while data := await asyncio.wait_for(reader.read(1 << 16), IDLE_TIMEOUT):
                await channel.feed(data)
            channel.end_input()
            await asyncio.wait_for(asyncio.shield(outward), IDLE_TIMEOUT)
        finally:
            outward.cancel()
    except (OSError, TimeoutError):
        await _refuse(channel, 502, "the target did not answer")
    finally:
        if writer:
            writer.close()
        channel.signal(signal.SIGKILL)


async def _outward(channel: Channel, writer: asyncio.StreamWriter) -> None:
    async for chunk in channel.chunks():
        writer.write(chunk)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _target(request: bytes) -> tuple[str, int] | None:
    words = request.split(b"\r\n")[0].split()
    if len(words) != 3 or words[0] != b"CONNECT":
        return None
    host, _, port = words[1].decode("ascii", "replace").rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdigit() and int(port) < 65536 else None


async def _resolve(host: str, port: int, allowed: tuple[str, ...]) -> str | None:
    """The address to connect to, resolved once; None where it is not public."""
    try:
        ipaddress.ip_address(host)
        return host  # the list names the address itself
    except ValueError:
        pass
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in found]
    return next((a for a in addresses if ipaddress.ip_address(a).is_global), None)


async def _refuse(channel: Channel, code: int, why: str) -> None:
    body = f"{why}\n".encode()
    await channel.feed(
        f"HTTP/1.1 {code} Refused\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
    )
    channel.end_input()
    await asyncio.sleep(0.05)  # let it be read before the connection is cut
