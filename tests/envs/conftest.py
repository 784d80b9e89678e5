"""What tests of environments share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def without_docker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without Docker: nothing listens at its daemon's address."""
    from agentrl.envs.sandboxes import close_all
    from agentrl.tools.sandbox.runner.loop import blocking

    blocking(close_all(), 120)
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    yield
    blocking(close_all(), 120)
