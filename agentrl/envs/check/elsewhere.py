"""`python -m agentrl.envs.check.elsewhere JOB`: an environment's tasks and episodes, as another process has them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from agentrl.common.plain import plain
from agentrl.envs import calls
from agentrl.envs.base import has_expert
from agentrl.envs.check.clock import shifted_clock
from agentrl.envs.data.samples import random_policy, sampled_policy
from agentrl.envs.episode import ScriptedPolicy, expert_policy, play, record
from agentrl.envs.registry import factory
from agentrl.types import Task

MARK = "tasks and episodes: "
"""Before them, in a line of their own: an environment's code may print, also as the process ends."""
TURNS = 30
EPISODE_SECONDS = 20.0
"""No further episodes are begun after so long."""


def policies(seed: int, expert: bool) -> dict[str, ScriptedPolicy]:
    """The agents whose episodes are compared, by name; they write the same in every process."""
    own: ScriptedPolicy = expert_policy if expert else sampled_policy
    return {"expert" if expert else "agent of made-up calls": own, "random agent": random_policy(seed)}


def written(value: Any) -> str:
    """Write a value as JSON, the same in every process: sets sorted, and what has no form as its text."""
    return json.dumps(value, default=lambda one: str(one) if (found := plain(one)) is one else found)


async def episodes(make: Any, tasks: list[Task], seed: int, seconds: float = EPISODE_SECONDS) -> Iterator[Any]:
    """Each task's id, the agent, and the record of its episode, or why it failed."""
    loop, found = asyncio.get_running_loop(), list[Any]()
    began = loop.time()
    for task in tasks:
        for name, policy in policies(seed, has_expert(make())).items():
            if loop.time() - began > seconds:
                return iter(found)
            try:
                session = await play(make(), task.model_copy(deep=True), policy, seed=seed, max_turns=TURNS)
                found.append((task.id, name, record(session)))
            except Exception as error:
                found.append((task.id, name, [f"{type(error).__name__}: {error}"]))
    return iter(found)


def main(text: str) -> None:
    """Write what was asked for as one line of JSON."""
    job: Mapping[str, Any] = json.loads(text)
    with shifted_clock() if job["date"] else contextlib.nullcontext():
        make = factory(job["name"], **job["options"])
        env = make()
        listed = {split: list(islice(calls.tasks(env, split), job["most"])) for split in env.splits}
        chosen = [task for tasks in listed.values() for task in tasks if task.id in job["played"]]
        found = list(asyncio.run(episodes(make, chosen, job["seed"])))
    tasks = {split: [task.model_dump() for task in each] for split, each in listed.items()}
    print(f"\n{MARK}{written({'tasks': tasks, 'episodes': found})}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
