"""Software episodes a minute, and how long they wait for sandboxes, beside a plain docker-py loop with the same work.

Experts are replayed with no engine at all, 16 episodes at once, so that whatever time passes is the environment's. The
baseline is what one writes first: for each episode a container for the agent and another for the tests, commands
through exec, files through the archive calls, on as many threads. Both run the tests once; ours has no other advantage
than being prepared. Tasks are proven before the clock starts, as a run proves each of them once.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from agentrl.config import RolloutConfig
from agentrl.envs import sandboxes
from agentrl.envs.builtin.swe import library
from agentrl.envs.builtin.swe.changes import apply_changes, difference, read_tar, write_tar
from agentrl.envs.builtin.swe.env import SPEC, Swe
from agentrl.envs.builtin.swe.patch import read_patch
from agentrl.envs.builtin.swe.repository import fast_import
from agentrl.envs.builtin.swe.scoring import Exam, final_tree
from agentrl.envs.builtin.swe.task import SweTask
from agentrl.envs.builtin.swe.tools import expert_steps
from agentrl.envs.builtin.swe.workspace import base_tree
from agentrl.envs.episode import EXPERT
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.sessions.renderers.families.null import NullRenderer
from benchmarks.machine import machine

TOGETHER = 16
LIMITS = RolloutConfig(concurrency=TOGETHER, timeout=3600.0, turn_timeout=600.0)


async def ours(tasks: list[SweTask], episodes: int) -> tuple[float, float]:
    """Episodes per minute, and the share of their time in which they waited for sandboxes."""
    chosen = [tasks[index % len(tasks)].as_task() for index in range(episodes)]
    rollouts = Rollouts(partial(Swe, tools="bash"), Policy(NullRenderer()), LIMITS, 0)
    began = time.monotonic()
    groups = await rollouts.collect(chosen, EXPERT, phase="bench", n=1)
    seconds = time.monotonic() - began
    sessions = [session for group in groups for session in group.sessions]
    unsolved = [session.task.id for session in sessions if session.reward != 1.0]
    if unsolved:
        raise SystemExit(f"not solved: {unsolved}")
    waited = sum(session.timings["sandbox_wait"] for session in sessions)
    lived = sum(session.timings["total"] + session.timings["reward"] for session in sessions)
    return 60 * episodes / seconds, waited / lived


def plain(client: Any, tasks: list[SweTask], episodes: int) -> float:
    """Episodes per minute of the plain loop."""
    began = time.monotonic()
    with ThreadPoolExecutor(TOGETHER) as threads:
        solved = list(threads.map(lambda index: _episode(client, tasks[index % len(tasks)]), range(episodes)))
    seconds = time.monotonic() - began
    if not all(solved):
        raise SystemExit("the plain loop did not solve everything")
    return 60 * episodes / seconds


def _episode(client: Any, task: SweTask) -> bool:
    base = base_tree(task)
    options = {"detach": True, "network_mode": "none", "user": "65534:65534", "mem_limit": f"{SPEC.memory_mb}m"}
    options |= {"entrypoint": ["sleep", "infinity"], "environment": {"HOME": "/tmp"}}
    agent = client.containers.run(SPEC.image, **options)
    try:
        agent.exec_run(["mkdir", "-p", "/tmp/repo"])
        agent.put_archive("/tmp", write_tar({"stream": _file(fast_import(task.commits))}))
        make = "git init -q -b main && git fast-import --quiet < ../stream && git reset -q --hard"
        agent.exec_run(["bash", "-c", make], workdir="/tmp/repo")
        for _, arguments in expert_steps(base, read_patch(base, task.solution.encode()), True):
            agent.exec_run(["bash", "-c", arguments["command"]], workdir="/tmp/repo")
        archive = b"".join(agent.get_archive("/tmp/repo/.")[0])
    finally:
        agent.remove(force=True)
    changes = difference(base, read_tar(archive))
    judge = client.containers.run(SPEC.image, **options)
    try:
        judge.exec_run(["mkdir", "-p", "/tmp/repo"])
        judge.put_archive("/tmp/repo", write_tar(apply_changes(final_tree(Exam.of(task), changes), {})))
        files = sorted({test.partition("::")[0] for test in task.required})
        code, _ = judge.exec_run(
            ["python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
            workdir="/tmp/repo",
            environment={"PYTHONPATH": ":".join(f"/tmp/repo/{path}" for path in task.paths)},
        )
    finally:
        judge.remove(force=True)
    return bool(code == 0)


def _file(data: bytes) -> Any:
    from agentrl.envs.builtin.swe.changes import File

    return File(data)


async def measure(rounds: int, episodes: int) -> None:
    """Print both, round after round in turn, and the median of the ratios."""
    import docker

    client = docker.from_env(timeout=300, max_pool_size=2 * TOGETHER)
    tasks = library.builtin()
    supplier = sandboxes.supplier("docker")
    await supplier.check(SPEC)
    await supplier.pool.warm(SPEC, TOGETHER + sandboxes.SPARE)
    await Swe().prepare([task.as_task() for task in tasks], 1)
    await ours(tasks, TOGETHER)
    rows = []
    for _ in range(rounds):
        mine, waiting = await ours(tasks, episodes)
        theirs = await asyncio.to_thread(plain, client, tasks, max(TOGETHER, episodes // 2))
        rows.append((mine, theirs, waiting))
        print(f"  {mine:.0f} episodes a minute, {waiting:.1%} of their time waiting; plain docker-py {theirs:.0f}")
    ratio = statistics.median(mine / theirs for mine, theirs, _ in rows)
    waiting = statistics.median(row[2] for row in rows)
    print(
        f"episodes a minute: {ratio:.1f} times the plain loop's (aim: at least 4); waiting: {waiting:.1%} (under 5 %)"
    )
    await sandboxes.close_all()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=64)
    options = parser.parse_args()
    print(machine())
    asyncio.run(measure(options.rounds, options.episodes))


if __name__ == "__main__":
    main()
