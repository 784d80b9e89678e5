"""Images at URLs: fetched from the hosts that are listed, and from no private address unless it is listed itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from agentrl.config.gateway import ImageUrlsConfig
from agentrl.errors import InvalidInput
from agentrl.sessions.gateway import Limits
from agentrl.sessions.gateway.http.image_urls import ImageFetcher, image_limits
from agentrl.sessions.gateway.limits import ImageLimits
from tests.sessions.gateway.conftest import Serve
from tests.sessions.gateway.test_images import PROTOCOLS, Seeing, ask, picture, url

RED = picture()


class Site(BaseHTTPRequestHandler):
    """A page of each kind; it counts what is asked for."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path == "/never":
            self.server.ended.wait()  # type: ignore[attr-defined]
            return
        moved = self.path == "/moved"
        self.send_response(302 if moved else 200)
        self.send_header("Location", "/red")
        self.end_headers()
        self.wfile.write({"/red": RED, "/page": b"<svg><script>alert(1)</script></svg>"}.get(self.path, bytes(5000)))

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    Site.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    server.ended = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.ended.set()  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_image_of_a_listed_host_is_fetched_once_and_stored_as_itself(
    serve: Serve, site: str, protocol: str
) -> None:
    limits = Limits(images=image_limits(ImageUrlsConfig(hosts=("127.0.0.1",))))
    async with serve(format=Seeing(), limits=limits) as served:
        for _ in range(2):
            opened = await served.open()
            answer = await ask(served, opened, protocol, f"{site}/red")
            assert answer.status_code == 200, answer.text
            assert served.session(opened["id"]).nodes[0].message.images == [url(RED)]
        refused = await ask(served, opened, protocol, f"{site}/page")
        assert (refused.status_code, "none of PNG" in refused.text) == (400, True)
    assert Site.asked == ["/red", "/page"]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/moved", "answered 302; redirects are not followed"),
        ("/large", "more than 4,000 bytes"),
        ("/page", "broken, or none of PNG"),
        ("/never", "did not come within 0.2 s"),
    ],
)
@pytest.mark.slow
def test_what_is_no_image_in_time_and_of_a_size_is_refused(site: str, path: str, why: str) -> None:
    fetcher = ImageFetcher(
        ImageUrlsConfig(hosts=("127.0.0.1",), max_bytes=4000, timeout=0.2 if path == "/never" else 60)
    )
    with pytest.raises(InvalidInput, match=why):
        fetcher.fetch(f"{site}{path}")


@pytest.mark.parametrize(
    ("hosts", "address", "why"),
    [
        (("example.com",), "http://127.0.0.1/", "images of this host are not fetched"),
        (("*.example.com",), "http://example.com/", "images of this host are not fetched"),
        (("*",), "http://127.0.0.1/", "no public address"),
        (("*",), "http://2130706433/", "no public address"),
        (("*",), "http://169.254.169.254/latest/meta-data", "no public address"),
        (("*",), "http://[::ffff:10.0.0.1]/", "no public address"),
        (("localhost",), "http://localhost/", "no public address"),
        (("*",), "file:///etc/passwd", "no http or https URL"),
        (("*",), "http://", "no http or https URL"),
    ],
)
def test_no_host_that_is_not_listed_and_no_private_address_is_asked(
    hosts: tuple[str, ...], address: str, why: str
) -> None:
    with pytest.raises(InvalidInput, match=why):
        ImageFetcher(ImageUrlsConfig(hosts=hosts)).fetch(address)


def test_without_hosts_nothing_is_fetched() -> None:
    assert image_limits(ImageUrlsConfig()) == ImageLimits()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.slow
async def test_more_images_than_a_request_may_have_are_refused_before_any_is_fetched(
    serve: Serve, site: str, protocol: str
) -> None:
    fetch = ImageFetcher(ImageUrlsConfig(hosts=("127.0.0.1",))).fetch
    limits = Limits(images=ImageLimits(most=1, fetch=fetch))
    async with serve(format=Seeing(), limits=limits) as served:
        opened = await served.open()
        answer = await ask(served, opened, protocol, f"{site}/red", times=2)
        assert (answer.status_code, "at most 1" in answer.text) == (413, True)
    assert Site.asked == []
