"""Creating the agent's workspace in a sandbox, and reading the working tree afterwards.

The repository is uploaded with git's data, in one call. Its history ends with the base commit: it never contained a
later commit, the solution or a hidden test. Its git data is made once, by git in a sandbox with fixed dates and names,
and cached.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from agentrl.envs.builtin.swe.changes import IGNORED, IGNORED_ENDINGS, MAX_BYTES, File, PatchRefused, Tree, read_tar
from agentrl.envs.builtin.swe.repository import fast_import, setup
from agentrl.envs.builtin.swe.task import SweTask
from agentrl.errors import SandboxError
from agentrl.tools.sandbox import Outcome, Sandbox, SandboxSpec

SPEC = SandboxSpec(workdir="/work/repo", env={"HOME": "/work"})
"""The sandbox of tasks made of commits: the repository is the working directory."""
KEPT = 512
"""Repositories whose archives are kept in memory; the built-in ones are some ten kilobytes each."""
ARCHIVE_BYTES = 3 * MAX_BYTES
"""Of a tree's archive: a small file takes three blocks there."""
GIT_SECONDS = 60.0
SETUP_SECONDS = 300.0
_EXCLUDED = [f"--exclude={name}" for name in sorted(IGNORED)] + [f"--exclude=*{end}" for end in IGNORED_ENDINGS]

_archives: OrderedDict[str, bytes] = OrderedDict()


def base_tree(task: SweTask) -> dict[str, File]:
    """The repository at the base commit, where the task's commits make it."""
    return {path: File(text.encode()) for path, text in task.files.items()}


async def create_workspace(sandbox: Sandbox, task: SweTask) -> None:
    """Write a task's repository into a fresh sandbox's working directory.

    Raises:
        SandboxError: it could not be done.
    """
    stream = fast_import(task.commits)
    key = hashlib.sha256(stream).hexdigest()
    archive = _archives.get(key)
    if archive is not None:
        _archives.move_to_end(key)
        await sandbox.upload(archive, ".")
    else:
        await _make(sandbox, stream, key)
    await set_up(sandbox, task)


async def set_up(sandbox: Sandbox, task: SweTask) -> None:
    """Run the task's setup commands."""
    for line in task.setup:
        done = await sandbox.exec(line, timeout=SETUP_SECONDS)
        if not done.ok:
            raise SandboxError(f"setup of task {task.id!r} failed: {line!r}: {done.text()[-500:]}")


async def _make(sandbox: Sandbox, stream: bytes, key: str) -> None:
    done = await sandbox.exec(setup(sandbox.workdir), cwd="/", stdin=stream, timeout=GIT_SECONDS)
    if not done.ok:
        raise SandboxError(f"git could not make the repository: {done.text()[-500:]}")
    await sandbox.exec("rm -rf .git/hooks .git/logs .git/info")
    packed = await sandbox.exec(["tar", "-cf", "-", "--format=gnu", "."], timeout=GIT_SECONDS, limit=ARCHIVE_BYTES)
    if packed.ok and not packed.stdout_dropped:
        _archives[key] = packed.stdout
        while len(_archives) > KEPT:
            _archives.popitem(last=False)


async def read_workspace(sandbox: Sandbox) -> Tree:
    """The working tree as the agent left it, without git's data and without caches.

    Raises:
        PatchRefused: it can't be read, or is too large.
        SandboxError: the sandbox failed.
    """
    line = f"chmod -R u+rwX . 2>/dev/null; exec tar -cf - --format=gnu {' '.join(map(_quoted, _EXCLUDED))} ."
    done = await sandbox.exec(line, timeout=GIT_SECONDS, limit=ARCHIVE_BYTES)
    if done.stdout_dropped:
        raise PatchRefused(f"the working tree is larger than {MAX_BYTES >> 20} MB")
    if done.outcome is not Outcome.EXITED or done.exit_code > 1:  # 1: a file changed while it was read
        raise PatchRefused(f"the working tree could not be read: {done.stderr.decode(errors='replace')[-300:]}")
    return read_tar(done.stdout)


def _quoted(option: str) -> str:
    return f"'{option}'"
