"""Real sandboxes for the tests: one a module where a test leaves nothing behind, one a test where it might."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from agentrl.tools.sandbox.docker.backend import DockerSandbox, create_docker
from agentrl.tools.sandbox.docker.daemon import available
from agentrl.tools.sandbox.docker.images import image_id
from agentrl.tools.sandbox.runner.loop import blocking
from agentrl.tools.sandbox.spec import SandboxSpec
from tests.conftest import need

SMALL = SandboxSpec(memory_mb=160, pids=64, tmpfs_mb={"/work": 32, "/tmp": 16}, shm_mb=8, file_mb=24, nofile=256)
"""Modest limits, so that running into them costs the machine little."""
TINY = SMALL.model_copy(update={"image": "agentrl/tiny:latest"})

Make = Callable[[SandboxSpec], DockerSandbox]


@pytest.fixture(scope="session")
def docker() -> None:
    need(available(), "a Docker daemon (sandboxes/ci-docker.sh starts one)")
    for image in (SMALL.image, TINY.image):
        need(blocking(image_id(image)), f"the image {image} (sandboxes/make-base.sh makes it)")


def _maker() -> Iterator[Make]:
    made: list[DockerSandbox] = []

    def make(spec: SandboxSpec = SMALL) -> DockerSandbox:
        sandbox = blocking(create_docker(spec), 90)
        assert isinstance(sandbox, DockerSandbox)
        made.append(sandbox)
        return sandbox

    yield make
    for sandbox in made:
        blocking(sandbox.close(), 60)


@pytest.fixture
def make(docker: None) -> Iterator[Make]:
    """Makes sandboxes that end with the test."""
    yield from _maker()


@pytest.fixture(scope="module")
def make_shared(docker: None) -> Iterator[Make]:
    """Makes sandboxes that end with the module."""
    yield from _maker()


@pytest.fixture(scope="module")
def shared(make_shared: Make) -> DockerSandbox:
    """One small sandbox for a module's tests that leave nothing behind."""
    return make_shared(SMALL)
