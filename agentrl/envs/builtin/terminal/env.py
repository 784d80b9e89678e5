"""`env=terminal`: tasks for a shell, in Docker sandboxes, judged by what the sandbox is like afterwards.

Files are to be moved, renamed and given permissions, texts to be processed, small programs to be written, processes to
be found and ended. The reward looks at the state only, never at what the agent says or prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from agentrl.envs.base import Env, reward
from agentrl.envs.builtin.code.runners import SPEC
from agentrl.envs.builtin.terminal.tasks import LEVELS, tasks
from agentrl.envs.builtin.terminal.verify import list_passed
from agentrl.envs.sandboxes import SandboxLease, supplier
from agentrl.errors import ConfigError, StateUnsupported
from agentrl.tools.sandbox.base import Process, Sandbox, Snapshot
from agentrl.tools.sandbox.toolkit import Toolkit
from agentrl.types import Message, Session, Task

COMMAND_SECONDS = 20.0
OPENING = "{words}\n\nYou are in the folder that the task is about. When all is done, say so without calling a tool."


class Terminal(Env):
    """Tasks for a shell in a sandbox: files, texts, permissions, programs, processes.

    Args:
        level: 1 to 3; without it they are mixed.
        seed: which tasks there are.
        sandbox: docker, or subprocess, which isolates nothing.
        image: the sandboxes' image; bash, python3 and procps must be in it.

    Attributes:
        ending: seconds that a program has to end after the agent has sent it a signal.
    """

    needs = "Docker, or sandbox=subprocess"
    max_turns = 20
    ending = 3.0

    def __init__(
        self, level: int | None = None, seed: int = 0, sandbox: str = "docker", image: str = SPEC.image
    ) -> None:
        if level is not None and level not in LEVELS:
            raise ConfigError(f"env.level = {level}: allowed are {', '.join(map(str, LEVELS))}")
        self.level, self.seed, self._backend = level, seed, sandbox
        self._spec = SPEC.model_copy(update={"image": image})
        self._task = Task(id="")
        self._lease = SandboxLease(sandbox, self._spec)
        self._programs: dict[str, Process] = {}
        self._passed: list[bool] | None = None
        self._toolkit = Toolkit(["bash", "edit"], timeout=COMMAND_SECONDS)
        for tool in self._toolkit.tools:
            self.tools.add(tool)

    def tasks(self, split: str = "train") -> Iterator[Task]:
        return tasks(self.seed, self.level, split)

    async def prepare(self, tasks: Sequence[Task], sessions: int) -> None:
        pool = supplier(self._backend)
        await pool.check(self._spec)
        await pool.prepare(self._spec, sessions)

    async def reset(self, task: Task, *, seed: int | None = None) -> str:
        """Open with the task's text; the sandbox is made when a tool first needs it.

        Raises:
            ConfigError: there can be none here.
        """
        await supplier(self._backend).check(self._spec)
        await self.close()
        self._task = task
        return OPENING.format(words=task["words"])

    async def _get_sandbox(self) -> Sandbox:
        return await self._lease.get(self._set_up)

    async def _set_up(self, sandbox: Sandbox) -> None:
        """Write the task's files and start its programs."""
        for path, text in self._task["files"].items():
            await sandbox.write(path, text, mode=int(self._task["modes"].get(path, "644"), 8))
        for program in self._task["programs"]:
            self._programs[program] = await sandbox.start(["python3", program])

    async def state(self) -> dict[str, Any]:
        """The sandbox's files and the shell.

        Raises:
            StateUnsupported: the task has running programs.
        """
        if self._task["programs"]:
            raise StateUnsupported("the task's programs run in the sandbox, and a snapshot does not contain them")
        files = (await (await self._get_sandbox()).snapshot()).plain() if self._lease.used else None
        return {"files": files, "tools": self._toolkit.state()}

    async def restore(self, task: Task, state: dict[str, Any]) -> None:
        self._task = task
        self._toolkit.restore(state["tools"])
        if state["files"] is not None:
            files = Snapshot.of(state["files"])
            await self._lease.get(lambda sandbox: sandbox.restore(files))

    def brief(self, task: Task) -> Task:
        return Task(id=task.id, data={"words": task["words"]})

    @reward
    async def solved(self, session: Session) -> float:
        """1 where everything is as it was asked for."""
        return float(all(await self._check()))

    @reward(weight=0.0)
    async def share(self, session: Session) -> float:
        """The share of the checks that hold, logged; some of them hold from the beginning."""
        checked = await self._check()
        return sum(checked) / len(checked)

    async def _check(self) -> list[bool]:
        if self._passed is None:
            checks = self._task["checks"]
            untouched = [False] * len(checks)  # no task is solved from the beginning
            sandbox = await self._get_sandbox() if self._lease.used else None
            self._passed = untouched
            if sandbox is not None:
                self._passed = await list_passed(sandbox, checks, self._programs, self.ending)
        return self._passed

    def expert(self, messages: Sequence[Message]) -> str | Message:
        done = sum(message.role == "tool" for message in messages)
        commands = self._task["commands"]
        return self.call("bash", command=commands[done]) if done < len(commands) else "Done."

    async def close(self) -> None:
        await self._lease.release()
        self._programs, self._passed = {}, None
