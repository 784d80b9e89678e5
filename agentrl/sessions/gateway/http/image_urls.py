"""Images at URLs of the network, fetched for clients that name them so (`gateway.image_urls`).

A client chooses the address, so nothing of this machine's network may be reached by it: the host is one that the
settings list, a name is resolved here, once, and an address that is not public is refused unless it is listed itself.
Redirects are not followed. One URL is one image for as long as it is kept, so that a
conversation that is sent again is the same.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections import OrderedDict

import httpx2

from agentrl.common import pictures
from agentrl.config.gateway import ImageUrlsConfig
from agentrl.errors import InvalidInput
from agentrl.sessions.gateway.limits import ImageLimits

_KEPT_CHARS = 64 << 20


def image_limits(config: ImageUrlsConfig) -> ImageLimits:
    """Return the limits of a gateway's images: whether URLs of the network are fetched."""
    return ImageLimits(fetch=ImageFetcher(config).fetch if config.hosts else None)


class ImageFetcher:
    """Fetches images, each once while it is kept; the settings say from where, how large, and how long."""

    def __init__(self, config: ImageUrlsConfig) -> None:
        self._config = config
        self._hosts = {host.lower() for host in config.hosts}
        self._kept: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def fetch(self, url: str) -> str:
        """The image at a URL, as a data URL; in a thread without an event loop.

        Raises:
            InvalidInput: the URL is not allowed, or there is no image that can be taken.
        """
        with self._lock:
            if url in self._kept:
                self._kept.move_to_end(url)
                return self._kept[url]
        try:
            data = asyncio.run(asyncio.wait_for(self._download(url), self._config.timeout))
        except TimeoutError:
            raise InvalidInput(f"{url[:80]!r} did not come within {self._config.timeout:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, UnicodeError) as error:
            raise InvalidInput(f"{url[:80]!r} can't be fetched: {type(error).__name__}: {error}") from None
        made = pictures.data_url(data)
        with self._lock:
            self._kept[url] = made
            while sum(map(len, self._kept.values())) > _KEPT_CHARS and len(self._kept) > 1:
                self._kept.popitem(last=False)
        return made

    async def _download(self, url: str) -> bytes:
        parsed = httpx2.URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise InvalidInput(f"{url[:80]!r} is no http or https URL")
        if not self._lists(parsed.host):
            raise InvalidInput(f"{url[:80]!r}: images of this host are not fetched (gateway.image_urls.hosts)")
        address = await self._address(parsed.host, parsed.port or (443 if parsed.scheme == "https" else 80))
        there, headers = parsed.copy_with(host=address), {"host": parsed.netloc.decode(), "accept-encoding": "identity"}
        async with httpx2.AsyncClient(follow_redirects=False, trust_env=False, timeout=None) as client:
            named = {"sni_hostname": parsed.host}
            async with client.stream("GET", there, headers=headers, extensions=named) as answer:
                if answer.status_code != httpx2.codes.OK:
                    raise InvalidInput(f"{url[:80]!r} answered {answer.status_code}; redirects are not followed")
                data = bytearray()
                async for piece in answer.aiter_raw():
                    data += piece
                    if len(data) > self._config.max_bytes:
                        raise InvalidInput(f"{url[:80]!r} has more than {self._config.max_bytes:,} bytes")
                return bytes(data)

    def _lists(self, host: str) -> bool:
        name = host.lower().rstrip(".")
        within = (entry[1:] for entry in self._hosts if entry.startswith("*."))
        return "*" in self._hosts or name in self._hosts or any(name.endswith(domain) for domain in within)

    async def _address(self, host: str, port: int) -> str:
        """The address to connect to: of a host's, the first that is public or listed itself."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for address in (str(entry[4][0]) for entry in found):
            if address in self._hosts or ipaddress.ip_address(address).is_global:
                return address
        raise InvalidInput(f"the host {host!r} has no public address; gateway.image_urls.hosts may list one itself")
