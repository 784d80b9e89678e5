"""Speed of sandboxes as ratios to plain docker-py in the same run, so that the machine's speed cancels out."""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from agentrl.tools.sandbox.docker.backend import create_docker
from agentrl.tools.sandbox.docker.container import remove
from agentrl.tools.sandbox.docker.daemon import Daemon, connect
from agentrl.tools.sandbox.docker.hardening import IDLE, container_config
from agentrl.tools.sandbox.docker.owner import owner
from agentrl.tools.sandbox.pool import SandboxPool
from agentrl.tools.sandbox.runner.loop import on_loop
from agentrl.tools.sandbox.spec import SandboxSpec

Step = Callable[[], Awaitable[Any]]


def percentile(values: Sequence[float], q: float) -> float:
    """The value below which a share `q` of the values lies (nearest rank)."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(q * len(ranked)))]


def machine() -> str:
    """One line about where this was measured."""
    return f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Linux {platform.release()}"


async def interleaved(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Seconds of each step, alternating between steps, so that other load affects all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            began = time.perf_counter()
            await step()
            seconds[name].append(time.perf_counter() - began)
    return seconds


async def bare_container(daemon: Daemon, spec: SandboxSpec) -> str:
    """A started container with the same limits, as plain docker-py makes it, without waiting until it is ready."""
    body = container_config(
        spec.model_copy(update={"runner": "none"}), owner().labels(spec.key), await daemon.remapped()
    )
    body["Cmd"] = list(IDLE)
    created = await daemon.call(daemon.api.create_container_from_config, body)
    await daemon.call(daemon.api.start, created["Id"])
    return str(created["Id"])


async def compare(spec: SandboxSpec, rounds: int = 200, starts: int = 10) -> list[str]:
    """Time the common operations; lines of text with ratios."""
    daemon = await connect(spec.daemon)
    made: list[Any] = []

    async def ours() -> None:
        made.append(await create_docker(spec))

    async def bare() -> None:
        made.append(await on_loop(bare_container(daemon, spec)))

    async def clear() -> None:
        while made:
            one = made.pop()
            await (on_loop(remove(daemon, one)) if isinstance(one, str) else one.close())

    cold: dict[str, list[float]] = {"ours": [], "bare": []}
    try:
        for turn in range(starts + 1):
            one = await interleaved({"ours": ours, "bare": bare} if turn % 2 else {"bare": bare, "ours": ours}, 1)
            await clear()
            for name in cold if turn else ():  # the first round warms up
                cold[name] += one[name]
    finally:
        await clear()
    lines = [machine(), _line("cold start", cold["ours"], cold["bare"], "bare container start")]
    return lines + await _commands(spec, daemon, rounds)


async def _commands(spec: SandboxSpec, daemon: Daemon, rounds: int) -> list[str]:
    pool = SandboxPool(total=4)
    container = await on_loop(bare_container(daemon, spec))
    try:
        await pool.warm(spec, 1)
        waits = []
        for _ in range(min(rounds, 20)):
            await pool.warm(spec, 1)
            began = time.perf_counter()
            leased = await pool.acquire(spec)
            waits.append(time.perf_counter() - began)
            await pool.release(leased)
        sandbox = await pool.acquire(spec)

        def docker_exec() -> Any:
            made = daemon.api.exec_create(container, ["echo", "x"])
            return daemon.api.exec_start(made["Id"])

        steps: dict[str, Step] = {
            "ours": lambda: sandbox.exec(["echo", "x"]),
            "docker": lambda: asyncio.to_thread(docker_exec),
        }
        times = await interleaved(steps, rounds)
    finally:
        await pool.close()
        await on_loop(remove(daemon, container))
    return [
        f"warm acquire: p50 {statistics.median(waits) * 1e3:.2f} ms",
        _line("exec of echo", times["ours"], times["docker"], "docker exec"),
    ]


def _line(what: str, ours: Sequence[float], theirs: Sequence[float], baseline: str) -> str:
    a, b = statistics.median(ours), statistics.median(theirs)
    tail = f"p99 {percentile(ours, 0.99) * 1e3:.2f} ms"
    return (
        f"{what}: p50 {a * 1e3:.2f} ms, {tail}; {baseline} p50 {b * 1e3:.2f} ms; ratio {a / b:.3f} ({b / a:.1f} times)"
    )
