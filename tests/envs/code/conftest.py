"""Judging for the tests: in this machine's sandboxes, and in one kept sandbox where a run leaves nothing behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import pytest

from agentrl.envs.builtin.code import Verdict, code_verdict
from agentrl.envs.builtin.code.runners import SPEC, InSandbox
from agentrl.envs.sandboxes import close_all
from agentrl.tools.sandbox.base import Sandbox
from agentrl.tools.sandbox.docker.backend import create_docker
from agentrl.tools.sandbox.docker.daemon import available
from agentrl.tools.sandbox.docker.images import image_id
from agentrl.tools.sandbox.runner.loop import blocking
from tests.conftest import need

PATIENCE = 100.0
"""Seconds for code that should pass: a loaded machine must not fail it."""
Judge = Callable[..., Awaitable[Verdict]]


@pytest.fixture(scope="session")
def docker() -> Iterator[None]:
    need(available(), "a Docker daemon (sandboxes/ci-docker.sh starts one)")
    need(blocking(image_id(SPEC.image)), f"the image {SPEC.image} (sandboxes/make-base.sh makes it)")
    yield
    blocking(close_all(), 120)


class Kept(InSandbox):
    """Runs in one sandbox that is not emptied in between, which takes most of a run's time."""

    sandbox: Sandbox

    async def run(self, stdin: bytes, timeout: float) -> tuple[str, str]:
        return await self._run(stdin, timeout, self.sandbox)


@pytest.fixture(scope="session")
def kept(docker: None) -> Iterator[Kept]:
    runner = Kept()
    object.__setattr__(runner, "sandbox", blocking(create_docker(SPEC), 90))
    yield runner
    blocking(runner.sandbox.close(), 60)


@pytest.fixture
def judged(docker: None) -> Judge:
    async def judged(code: str, tests: str, timeout: float = PATIENCE, **more: object) -> Verdict:
        return await code_verdict(f"```python\n{code}\n```", tests, timeout=timeout, **more)

    return judged
