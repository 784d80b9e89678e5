"""The source of a task's repository: the task's commits, or an image that contains it."""

from __future__ import annotations

import os
import sys
from typing import Any, Protocol

from agentrl.envs.builtin.swe import prebuilt
from agentrl.envs.builtin.swe.changes import Changes, difference
from agentrl.envs.builtin.swe.generation import find_key
from agentrl.envs.builtin.swe.patch import as_patch, read_patch
from agentrl.envs.builtin.swe.scoring import Exam, ScoringResult, score
from agentrl.envs.builtin.swe.task import SweTask
from agentrl.envs.builtin.swe.tools import Step, end_step, expert_steps
from agentrl.envs.builtin.swe.workspace import SPEC, base_tree, create_workspace, read_workspace
from agentrl.envs.sandboxes import Supplier
from agentrl.tools.sandbox.base import Sandbox
from agentrl.tools.sandbox.local import SubprocessSandbox
from agentrl.tools.sandbox.spec import SandboxSpec


class RepositorySource(Protocol):
    """An episode's operations on its sandboxes."""

    spec: SandboxSpec
    in_place: bool
    """True: `judge` runs in the agent's own sandbox, with all that was done there."""

    async def prove(self, supplier: Supplier) -> None:
        """Find out, once, what the task's tests should show; InvalidInput where it can't be scored."""
        ...

    async def open(self, sandbox: Sandbox) -> None:
        """Create the agent's workspace."""
        ...

    async def changes(self, sandbox: Sandbox) -> Changes:
        """Return the agent's changes; PatchRefused where they can't be read."""
        ...

    async def judge(self, changes: Changes, sandbox: Sandbox) -> ScoringResult:
        """Run the tests: on the changes in a sandbox that the agent has not seen, or `in_place`."""
        ...

    def patch(self, changes: Changes, limit: int) -> bytes:
        """The changes as text, for the record: `limit` bytes of it."""
        ...

    def state(self) -> Any:
        """The data that `changes` needs from `open`, as plain data."""
        ...

    def restore(self, state: Any) -> None:
        """Continue from what `state` returned, in place of `open`."""
        ...

    def expert(self, bash_only: bool) -> list[Step]:
        """The reference solution, step by step."""
        ...


class CommitSource:
    """A repository that the task's commits make."""

    in_place = False

    def __init__(self, task: SweTask) -> None:
        self.spec, self._task, self._base = SPEC, task, base_tree(task)

    async def prove(self, supplier: Supplier) -> None:
        if find_key.find_stored(self._task) is None:
            await supplier.run(self.spec, self._find_key)

    async def _find_key(self, sandbox: Sandbox) -> None:
        try:
            await find_key.find(self._task, sandbox, python=_python(sandbox))
        finally:
            await sandbox.close()  # expected values were in it: it is not reused

    async def open(self, sandbox: Sandbox) -> None:
        await create_workspace(sandbox, self._task)

    async def changes(self, sandbox: Sandbox) -> Changes:
        return difference(self._base, await read_workspace(sandbox))

    async def judge(self, changes: Changes, sandbox: Sandbox) -> ScoringResult:
        key = find_key.find_stored(self._task)
        assert key is not None, "an episode begins with `prove`"
        return await score(Exam.of(self._task), key, changes, sandbox, python=_python(sandbox))

    def state(self) -> None:
        """See `RepositorySource`; the commits say everything."""

    def restore(self, state: None) -> None:
        """See `RepositorySource`."""

    def patch(self, changes: Changes, limit: int) -> bytes:
        return as_patch(self._base, changes, limit)

    def expert(self, bash_only: bool) -> list[Step]:
        return expert_steps(self._base, read_patch(self._base, self._task.solution.encode()), bash_only)


class ImageSource:
    """A repository in the task's image."""

    def __init__(self, task: SweTask, fresh_tests: bool = True) -> None:
        self.spec, self._task = prebuilt.spec_of(task), task
        self.in_place = task.log_format == prebuilt.REWARD and not fresh_tests
        self._before: prebuilt.Manifest = {}

    async def prove(self, supplier: Supplier) -> None:
        """Nothing to find: a log or a file decides; what its tests need of this machine has to be there."""
        prebuilt.variables(self._task)

    async def open(self, sandbox: Sandbox) -> None:
        if not self.in_place:
            await prebuilt.prepare_repository(sandbox, self._task)
        self._before = await prebuilt.manifest(sandbox)

    async def changes(self, sandbox: Sandbox) -> Changes:
        return await prebuilt.changes(sandbox, self._before)

    async def judge(self, changes: Changes, sandbox: Sandbox) -> ScoringResult:
        if self.in_place:
            return await prebuilt.reward(self._task, sandbox)
        return await prebuilt.judge(self._task, changes, sandbox)

    def state(self) -> list[tuple[bytes, int, bytes]]:
        return [(os.fsencode(path), mode, os.fsencode(what)) for path, (mode, what) in self._before.items()]

    def restore(self, state: Any) -> None:
        self._before = {os.fsdecode(path): (mode, os.fsdecode(what)) for path, mode, what in state}

    def patch(self, changes: Changes, limit: int) -> bytes:
        """The changed files whole: what they were before never left the image."""
        return as_patch({}, {path: file for path, file in changes.items() if file is not None}, limit)

    def expert(self, bash_only: bool) -> list[Step]:
        script = self._task.solution_script or f"git apply - <<'END_OF_PATCH'\n{self._task.solution}\nEND_OF_PATCH"
        return [("bash", {"command": script}), end_step(bash_only)]


def _python(sandbox: Sandbox) -> str:
    return sys.executable if isinstance(sandbox, SubprocessSandbox) else "python3"


def source_of(task: SweTask, fresh_tests: bool = True) -> RepositorySource:
    """The source of a task's repository; `fresh_tests`: tests that write a reward run in a sandbox of their own."""
    return CommitSource(task) if task.image is None or task.commits else ImageSource(task, fresh_tests)
