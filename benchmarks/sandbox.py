"""Sandboxes against plain docker-py in the same run.

Run it as python -m benchmarks.sandbox [part ...].

Parts: basics, crowd, neighbour, output, lives, reuse (all by default). Every load is bounded and ends by itself;
everything runs on this machine's daemon, in containers without a network.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agentrl.tools.sandbox.base import Sandbox, SandboxDied
from agentrl.tools.sandbox.bench import bare_container, compare, machine, percentile
from agentrl.tools.sandbox.docker.backend import create_docker
from agentrl.tools.sandbox.docker.container import remove
from agentrl.tools.sandbox.docker.daemon import connect, daemon
from agentrl.tools.sandbox.docker.owner import OWNER, owner
from agentrl.tools.sandbox.pool import SandboxPool
from agentrl.tools.sandbox.runner.loop import on_loop
from agentrl.tools.sandbox.spec import SandboxSpec

SPEC = SandboxSpec(memory_mb=160, pids=64, tmpfs_mb={"/work": 32, "/tmp": 16}, shm_mb=8, file_mb=24)
ATTACKS = {
    "fork bomb": "b() { b | b & }; b; sleep 30",
    "memory bomb, again and again": "while :; do python3 -c 'x = []\nwhile 1: x.append(b\"x\" * (4 << 20))'; done",
    "busy loops": "for i in 1 2 3 4 5 6 7 8; do while :; do :; done & done; wait",
    "output flood": "yes",
    "disk fill, again and again": "while :; do head -c 40M /dev/zero 2>/dev/null >/work/x; rm -f /work/x; done",
    "forks and execs": "while :; do /bin/true; done",
}


async def basics() -> None:
    """Cold start, warm acquire, exec: ratios to plain docker-py."""
    for line in (await compare(SandboxSpec(), rounds=200, starts=20))[1:]:
        print(line)


async def crowd(containers: int = 16, rounds: int = 100) -> None:
    """Sixteen containers at once: how they start, and each runs command after command; against plain docker-py's."""
    link, sandboxes, bare = await connect(SPEC.daemon), list[Sandbox](), list[str]()
    threads = ThreadPoolExecutor(containers)

    def plain(name: str) -> None:
        link.api.exec_start(link.api.exec_create(name, ["echo", "x"])["Id"])

    async def run(call: Callable[[], Awaitable[object]], count: int, times: list[float]) -> None:
        for _ in range(count):
            began = time.perf_counter()
            await call()
            times.append(time.perf_counter() - began)

    try:
        began = time.perf_counter()
        sandboxes = await asyncio.gather(*(create_docker(SPEC) for _ in range(containers)))
        started = time.perf_counter() - began
        began = time.perf_counter()
        bare = await asyncio.gather(*(on_loop(bare_container(link, SPEC)) for _ in range(containers)))
        of_bare = time.perf_counter() - began
        ours, theirs, into = list[float](), list[float](), asyncio.get_running_loop().run_in_executor
        await asyncio.gather(*(run(lambda s=each: s.exec(["echo", "x"]), 5, []) for each in sandboxes))
        began = time.perf_counter()
        await asyncio.gather(*(run(lambda s=each: s.exec(["echo", "x"]), rounds, ours) for each in sandboxes))
        rate = len(ours) / (time.perf_counter() - began)
        await asyncio.gather(
            *(run(lambda n=each: into(threads, plain, n), max(1, rounds // 10), theirs) for each in bare)
        )
    finally:
        await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
        await asyncio.gather(*(on_loop(remove(link, name)) for name in bare))
        threads.shutdown()
    p50, p99, other = statistics.median(ours) * 1e3, percentile(ours, 0.99) * 1e3, statistics.median(theirs) * 1e3
    print(f"{containers} containers at once: exec p50 {p50:.1f} ms, p99 {p99:.1f} ms, {rate:.0f} commands/s; ", end="")
    print(f"docker exec p50 {other:.1f} ms, {other / p50:.1f} times")
    print(
        f"{containers} started at once: {started:.2f} s, bare containers {of_bare:.2f} s, ratio {started / of_bare:.2f}"
    )


async def _paced(sandbox: Sandbox, count: int) -> list[float]:
    times = []
    for _ in range(count):
        began = time.perf_counter()
        await sandbox.exec("for i in 1 2 3 4 5 6 7 8 9; do /bin/true; done")
        times.append(time.perf_counter() - began)
        await asyncio.sleep(0.005)
    return times


async def neighbour(rounds: int = 4, count: int = 40) -> None:
    """A neighbour's command while an attack goes on, against the same without; in turns."""
    attacker, victim = await asyncio.gather(create_docker(SPEC), create_docker(SPEC))
    try:
        await _paced(victim, count)
        for name, attack in ATTACKS.items():
            quiet: list[float] = []
            loud: list[float] = []
            for _ in range(rounds):
                quiet += await _paced(victim, count)
                process = await attacker.start(attack, limit=1000)
                await asyncio.sleep(0.3)
                loud += await _paced(victim, count)
                await process.stop()
            a, b = statistics.median(loud), statistics.median(quiet)
            print(f"neighbour during {name}: p50 {a * 1e3:.2f} ms against {b * 1e3:.2f} ms; ratio {a / b:.2f}")
    finally:
        await asyncio.gather(attacker.close(), victim.close())


def _forget_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far
    return _resident_kib()


def _resident_kib(field: str = "VmRSS") -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


async def output(gigabytes: int = 10) -> None:
    """Ten gigabytes of output: how much the controller grows."""
    sandbox = await create_docker(SPEC)
    try:
        await sandbox.exec("head -c 100000000 /dev/zero", timeout=60)
        before = _forget_peak()
        began = time.perf_counter()
        result = await sandbox.exec(f"head -c {gigabytes << 30} /dev/zero", timeout=300)
        seconds = time.perf_counter() - began
        grown = _resident_kib("VmHWM") - before
        assert result.ok
        assert result.stdout_dropped + len(result.stdout) == gigabytes << 30
    finally:
        await sandbox.close()
    print(
        f"{gigabytes} GiB of output: controller's peak grew by {grown / 1024:.1f} MiB, {gigabytes / seconds:.2f} GiB/s"
    )


async def lives(count: int = 1000, at_once: int = 8) -> None:
    """A thousand lives, one in twenty with a fault; what is left behind."""
    api = daemon().api

    def held() -> dict[str, int]:
        ours = api.containers(all=True, filters={"label": f"{OWNER}={owner().id}"})
        volumes = api.volumes()["Volumes"] or []
        descriptors = len(os.listdir("/proc/self/fd"))
        return {
            "containers": len(ours),
            "volumes": len(volumes),
            "threads": threading.active_count(),
            "descriptors": descriptors,
        }

    ends = {"lived": 0, "died": 0}
    places = asyncio.Semaphore(at_once)

    async def life(number: int) -> None:
        async with places:
            sandbox = await create_docker(SPEC)
            try:
                if number % 20 == 7:
                    fault: Callable[..., object] = (api.kill, api.pause, api.remove_container)[number // 20 % 3]
                    more = {"force": True} if fault == api.remove_container else {}
                    if fault == api.pause:
                        work: Awaitable[object] = asyncio.wait_for(sandbox.exec("true"), 0.5)
                    else:
                        work = sandbox.exec("true")
                    await on_loop(daemon().call(fault, sandbox.id, **more))
                    await work
                await sandbox.exec("true")
                ends["lived"] += 1
            except (SandboxDied, TimeoutError):
                ends["died"] += 1
            finally:
                await sandbox.close()

    await asyncio.gather(*(life(0) for _ in range(2 * at_once)))
    before = held()
    ends.update(lived=0, died=0)
    began = time.perf_counter()
    await asyncio.gather(*(life(number) for number in range(count)))
    rate = count / (time.perf_counter() - began)
    await asyncio.sleep(1.0)
    after = held()
    left = {name: after[name] - before[name] for name in before}
    print(f"{count} lives ({ends['died']} with a fault), {rate:.1f} a second; left behind: {left}")


async def reuse(rounds: int = 6, sessions: int = 40, at_once: int = 4) -> None:
    """Short sessions from a pool that empties and reuses its sandboxes, against one that uses each once; in turns."""
    pools = {"proven": SandboxPool(recycle=True), "never": SandboxPool(recycle=False)}
    waits: dict[str, list[float]] = {name: [] for name in pools}
    rates: dict[str, list[float]] = {name: [] for name in pools}
    processor: dict[str, list[float]] = {name: [] for name in pools}

    async def session(name: str, places: asyncio.Semaphore) -> None:
        async with places:
            began = time.perf_counter()
            sandbox = await pools[name].acquire(SPEC)
            waits[name].append(time.perf_counter() - began)
            await sandbox.write("file", b"x" * 10_000)
            await sandbox.exec("cat file | wc -c; mkdir -p a/b; echo done > a/b/c")
            await pools[name].release(sandbox)

    def busy() -> float:
        """Processor seconds of the whole machine, daemon and containers included."""
        fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")

    try:
        for turn in range(rounds + 1):
            for name, pool in pools.items():
                await pool.warm(SPEC, 2 * at_once)
                places = asyncio.Semaphore(at_once)
                began, used = time.perf_counter(), busy()
                await asyncio.gather(*(session(name, places) for _ in range(sessions)))
                if turn:  # the first round warms up
                    rates[name].append(sessions / (time.perf_counter() - began))
                    processor[name].append((busy() - used) / sessions)
                else:
                    waits[name].clear()
                await pool.prepare(SPEC, 0)  # what is idle must not be in the other's way
                await asyncio.sleep(1.0)
    finally:
        await asyncio.gather(*(pool.close() for pool in pools.values()))
    for name in pools:
        print(
            f"sandbox.reuse={name}: {statistics.median(rates[name]):.1f} sessions/s, "
            f"wait p50 {statistics.median(waits[name]) * 1e3:.1f} ms, "
            f"p99 {percentile(waits[name], 0.99) * 1e3:.0f} ms, "
            f"{statistics.median(processor[name]):.3f} processor seconds a session; {dict(pools[name].counts)}"
        )
    ratio = [a / b for a, b in zip(rates["proven"], rates["never"], strict=True)]
    print(f"sessions/s, proven over never: {statistics.median(ratio):.2f} ({min(ratio):.2f} to {max(ratio):.2f})")


PARTS = {"basics": basics, "crowd": crowd, "neighbour": neighbour, "output": output, "lives": lives, "reuse": reuse}


def main(parts: list[str] | None = None) -> None:
    """Run the chosen parts."""
    print(machine())
    for part in parts or list(PARTS):
        asyncio.run(PARTS[part]())


if __name__ == "__main__":
    main(sys.argv[1:])
