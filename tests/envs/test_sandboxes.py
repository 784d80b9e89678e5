"""What a run says about its sandboxes reaches the pool that hands them out."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentrl.config import SandboxConfig
from agentrl.envs import sandboxes
from agentrl.errors import ConfigError
from agentrl.overrides import validate
from agentrl.tools.sandbox.registry import SANDBOXES
from agentrl.tools.sandbox.runner.loop import blocking
from agentrl.tools.sandbox.spec import SandboxSpec

pytestmark = pytest.mark.slow


@pytest.fixture
def made(forget_names: Callable[[Any], None]) -> Iterator[list[Any]]:
    """Sandboxes of the backend `nothing`, made of nothing, in the order of their making."""
    made: list[Any] = []

    class Nothing:
        def __init__(self) -> None:
            self.id = f"nothing-{len(made)}"

        async def healthy(self) -> bool:
            return True

        def renewed(self) -> Any:
            return self

        async def reset(self) -> None:
            pass

        async def close(self) -> None:
            pass

    async def create(spec: SandboxSpec) -> Any:
        made.append(Nothing())
        return made[-1]

    forget_names(SANDBOXES)
    SANDBOXES.register("nothing", create)
    yield made
    blocking(sandboxes.close_all(), 120)
    sandboxes.configure(SandboxConfig())


async def _sessions(count: int) -> list[str]:
    supplier = sandboxes.supplier("nothing")
    used = []
    for _ in range(count):
        sandbox, _ = await supplier.acquire(SandboxSpec())
        used.append(sandbox.id)
        await supplier.release(sandbox)
    await supplier.pool.close()
    return used


async def test_each_sandbox_is_used_once_where_the_run_says_so(made: list[Any]) -> None:
    sandboxes.configure(SandboxConfig(reuse="never"))
    used = await _sessions(5)
    assert len(set(used)) == 5


async def test_a_sandbox_proved_empty_is_used_again_by_default(made: list[Any]) -> None:
    sandboxes.configure(SandboxConfig())
    assert len(set(await _sessions(5))) < 5


async def test_an_episode_that_ended_while_it_waited_leaves_no_traceback_behind(made: list[Any]) -> None:
    """`agentrl check env=swe` printed "the pool is closed", with its traceback, for each such episode."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    supplier = sandboxes.supplier("nothing")
    supplier.pool.total = 0  # there is never one
    waiting = asyncio.create_task(supplier.acquire(SandboxSpec()))
    while not supplier.pool.waiting:  # noqa: ASYNC110 - of another loop
        await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await supplier.pool.close()
    del waiting
    for _ in range(3):
        await asyncio.sleep(0.01)
        gc.collect()
    assert complaints == []


def test_a_wrong_choice_is_named_with_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match=r"reuse.*proven.*never"):
        validate({"reuse": "always"}, SandboxConfig)


async def test_a_sandbox_goes_back_to_the_pool_that_it_came_from(made: list[Any]) -> None:
    """Another run of the process had set `sandbox.reuse` meanwhile, and its pool got the sandbox."""
    lease = sandboxes.SandboxLease("nothing", SandboxSpec())
    await lease.get()
    supplier = sandboxes.supplier("nothing")
    sandboxes.configure(SandboxConfig(reuse="never"))
    await lease.release()
    assert not supplier.leased
    await supplier.pool.close()
