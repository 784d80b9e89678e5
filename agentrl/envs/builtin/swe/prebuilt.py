"""Repositories in an image, such as SWE-bench's: later commits are removed, changes are found by hashes.

Such a repository is too large to be copied out for each episode. So a manifest of it (path, mode, hash) is made before
the agent begins, and another afterwards; only what differs is read. Its tests are run by the task's own command and
scored by its log, as the public harness does, after the test files are restored. This makes results comparable, and it
is weaker than the scoring of the built-in tasks: a log is text, and the code under test can print (docs/decisions/045).
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Mapping

from agentrl.common.untrusted import read_json
from agentrl.envs.builtin.swe import logs
from agentrl.envs.builtin.swe.changes import (
    EXECUTABLE,
    IGNORED,
    IGNORED_ENDINGS,
    LINK,
    MAX_BYTES,
    MAX_FILES,
    REGULAR,
    Changes,
    File,
    PatchRefused,
    read_tar,
    write_tar,
)
from agentrl.envs.builtin.swe.scoring import ScoringResult, is_protected
from agentrl.envs.builtin.swe.task import SweTask
from agentrl.envs.builtin.swe.workspace import ARCHIVE_BYTES, set_up
from agentrl.errors import InvalidInput, SandboxError, ToolError
from agentrl.tools.sandbox.base import Outcome, Sandbox
from agentrl.tools.sandbox.spec import SandboxSpec

Manifest = dict[str, tuple[int, str]]
"""Of each path its mode and its hash, or a link's target."""
SECONDS = 300.0
LOG_BYTES = 8 << 20
REWARD = "reward"
"""The log format of tasks whose `tests/test.sh` writes its verdict into a file (Harbor's), and its name there."""
REWARD_BYTES = 1 << 16
_VARIABLE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}", re.DOTALL)

_REMOVE_LATER = """
[ -e .git ] || exit 0
git config --global --add safe.directory '*' 2>/dev/null
git checkout -q -f {base} && git checkout -q --detach || exit 1
for remote in $(git remote); do git remote remove "$remote"; done
git for-each-ref --format='delete %(refname)' | git update-ref --stdin
rm -rf .git/logs .git/ORIG_HEAD .git/FETCH_HEAD .git/packed-refs.lock
git reflog expire --expire=now --all
git -c gc.pruneExpire=now gc -q --prune=now
"""
"""Whatever is not an ancestor of the base commit goes: branches, tags, remotes, stashes, logs and their objects."""
_LIST = "find . {prune} -o -type f -printf '%m\\t%p\\0' -o -type l -printf 'l\\t%p\\t%l\\0'"
_HASH = "find . {prune} -o -type f -print0 | LC_ALL=C sort -z | xargs -0 -r sha1sum -z --"


def spec_of(task: SweTask) -> SandboxSpec:
    """A sandbox of the task's image; its root is writable, since the repository is there.

    Images of other sources' tasks may have files of the task in /tmp, so nothing is mounted over it there.
    """
    return SandboxSpec(
        image=task.image or "",
        workdir=task.workdir,
        user="0:0",
        memory_mb=4096,
        pids=1024,
        tmpfs_mb={} if task.log_format == REWARD else {"/tmp": 1024},
        writable_root=True,
        disk_mb=None,
    )


async def prepare_repository(sandbox: Sandbox, task: SweTask) -> None:
    """Check out the base commit in the image's repository, and remove every later one.

    Raises:
        SandboxError: it could not be done.
    """
    done = await sandbox.exec(_REMOVE_LATER.format(base=shlex.quote(task.base_commit or "HEAD")), timeout=SECONDS)
    if not done.ok:
        raise SandboxError(f"the repository of task {task.id!r} could not be prepared: {done.text()[-500:]}")
    await set_up(sandbox, task)


async def manifest(sandbox: Sandbox) -> Manifest:
    """The manifest of the working tree.

    Raises:
        PatchRefused: it can't be listed.
    """
    names = [f"-name {shlex.quote(name)}" for name in sorted(IGNORED)]
    names += [f"-name {shlex.quote('*' + ending)}" for ending in IGNORED_ENDINGS]
    prune = f"\\( {' -o '.join(names)} \\) -prune"
    listed = await sandbox.exec(_LIST.format(prune=prune), timeout=SECONDS, limit=ARCHIVE_BYTES)
    hashed = await sandbox.exec(_HASH.format(prune=prune), timeout=SECONDS, limit=ARCHIVE_BYTES)
    for done in (listed, hashed):
        if done.outcome is not Outcome.EXITED or done.stdout_dropped:
            raise PatchRefused(f"the working tree could not be listed: {done.text()[-300:]}")
    hashes: dict[str, str] = {}
    for row in hashed.stdout.decode("utf-8", "surrogateescape").split("\0"):
        digest, _, path = row.partition("  ")
        hashes[path.removeprefix("./")] = digest
    found: Manifest = {}
    for row in listed.stdout.decode("utf-8", "surrogateescape").split("\0"):
        mode, _, rest = row.partition("\t")
        path, _, target = rest.partition("\t") if mode == "l" else (rest, "", "")
        path = path.removeprefix("./")
        if mode == "l":
            found[path] = LINK, target
        elif mode and path in hashes:
            found[path] = (EXECUTABLE if int(mode, 8) & 0o100 else REGULAR), hashes[path]
    if len(found) > MAX_FILES:
        raise PatchRefused(f"the tree holds more than {MAX_FILES} files")
    return found


async def changes(sandbox: Sandbox, before: Manifest) -> Changes:
    """Return the tree's changes since `before`.

    Raises:
        PatchRefused: it can't be read, or is too large.
    """
    now = await manifest(sandbox)
    differing = [path for path, entry in now.items() if before.get(path) != entry]
    gone: dict[str, File | None] = dict.fromkeys(path for path in before if path not in now)
    if not differing:
        return gone
    names = b"\0".join(f"./{path}".encode("utf-8", "surrogateescape") for path in differing)
    line = ["tar", "--null", "--no-recursion", "--format=gnu", "-cf", "-", "-T", "-"]
    packed = await sandbox.exec(line, stdin=names, timeout=SECONDS, limit=ARCHIVE_BYTES)
    if packed.stdout_dropped:
        raise PatchRefused(f"the changes are larger than {MAX_BYTES >> 20} MB")
    if packed.outcome is not Outcome.EXITED or packed.exit_code > 1:
        raise PatchRefused(f"the changes could not be read: {packed.stderr.decode(errors='replace')[-300:]}")
    return gone | read_tar(packed.stdout)


async def judge(task: SweTask, changed: Changes, sandbox: Sandbox) -> ScoringResult:
    """Write the changes and then the tests into a fresh sandbox, run the task's command and read its log.

    Raises:
        SandboxError: the sandbox failed, not what ran in it.
    """
    await prepare_repository(sandbox, task)
    own_tests = () if task.log_format == REWARD else task.test_files
    kept = {path: file for path, file in changed.items() if not is_protected(path) and path not in own_tests}
    removed = b"".join(f"./{path}\0".encode("utf-8", "surrogateescape") for path, file in kept.items() if file is None)
    if removed:
        await sandbox.exec(["xargs", "-0", "rm", "-f", "--"], stdin=removed)
    await sandbox.upload(write_tar({path: file for path, file in kept.items() if file is not None}), ".")
    if task.log_format == REWARD:
        return await reward(task, sandbox)
    if note := await _put_tests(task, sandbox):
        return ScoringResult(dict.fromkeys(task.required, False), note)
    env = {**task.env, "PYTHONDONTWRITEBYTECODE": "1"}
    line = " ".join([task.test_command, *map(shlex.quote, directives(task))])
    done = await sandbox.exec(line, timeout=task.timeout, env=env, limit=LOG_BYTES)
    text = f"{done.stdout.decode(errors='replace')}\n{done.stderr.decode(errors='replace')}"
    seen = logs.parse(text, task.log_format)
    passed = {test: logs.is_fixed(seen, test) for test in task.fail_to_pass}
    passed |= {test: logs.is_kept(seen, test) for test in task.pass_to_pass}
    note = "" if done.outcome is Outcome.EXITED else f"the tests came to no end: {done.outcome.value}"
    return ScoringResult(passed, note, {test: "" for test, good in passed.items() if not good})


def directives(task: SweTask) -> list[str]:
    """The arguments of the test command: the test files, as modules for Django's runner (as in SWE-bench)."""
    files = [*task.test_files, *_list_touched(task.test_patch)]
    found = list(dict.fromkeys(path for path in files if path.endswith(".py")))
    if task.log_format != "django":
        return found
    return [path.removesuffix(".py").removeprefix("tests/").replace("/", ".") for path in found]


def _list_touched(patch: str) -> list[str]:
    lines = (line for line in patch.splitlines() if line.startswith(("--- a/", "+++ b/")))
    return list(dict.fromkeys(line[6:] for line in lines))


def variables(task: SweTask, here: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of a task's tests, with this machine's values where it asks for them, as Harbor does.

    Args:
        task: with what it asks for.
        here: this machine's variables.

    Raises:
        InvalidInput: one is not set here and has no default.
    """
    if task.log_format != REWARD:
        return dict(task.env)
    found = {}
    for name, value in task.env.items():
        asked = _VARIABLE.fullmatch(value)
        given = value if asked is None else here.get(asked[1], asked[2])
        if given is None:
            raise InvalidInput(f"task {task.id!r}: verifier.env.{name} = {value!r}: the variable is not set here")
        found[name] = given
    return found


async def reward(task: SweTask, sandbox: Sandbox) -> ScoringResult:
    """Run Harbor's `tests/test.sh` and read what it writes into /logs/verifier: reward.json, or reward.txt."""
    await sandbox.upload(write_tar({path: File(text.encode()) for path, text in task.tests.items()}), "/tests")
    await sandbox.exec(["rm", "-rf", "/logs/verifier"])
    await sandbox.exec(["mkdir", "-p", "/logs/verifier"])
    await sandbox.exec(["bash", "/tests/test.sh"], timeout=task.timeout, env=variables(task), limit=LOG_BYTES)
    try:
        rewards = await _rewards(sandbox)
        given = rewards[REWARD]
    except (ToolError, ValueError, LookupError) as error:
        return ScoringResult({REWARD: False}, f"test.sh wrote no reward: {error}")
    return ScoringResult({REWARD: given >= 1}, f"test.sh wrote {given:g}", rewards=rewards)


async def _rewards(sandbox: Sandbox) -> dict[str, float]:
    """The numbers of reward.json by their names; `reward` is that of reward.txt where it is not among them.

    Raises:
        ToolError: neither file is there, or one is too long.
        ValueError: what they hold is no finite number, or no object.
    """
    try:
        told = read_json(await sandbox.read("/logs/verifier/reward.json", limit=REWARD_BYTES))
    except ToolError:
        told = {}
    if not isinstance(told, dict):
        raise ValueError("reward.json is no object")
    numbers = {name: value for name, value in told.items() if not isinstance(value, bool)}
    rewards = {name: float(value) for name, value in numbers.items() if isinstance(value, int | float)}
    if REWARD not in rewards:
        rewards[REWARD] = float(await sandbox.read("/logs/verifier/reward.txt", limit=64))
    if not all(map(math.isfinite, rewards.values())):
        raise ValueError(f"a number that is not finite: {rewards}")
    return rewards


async def _put_tests(task: SweTask, sandbox: Sandbox) -> str:
    """Write the task's tests over the files at their paths; returns a message where that fails."""
    if task.test_files:
        await sandbox.upload(write_tar({path: File(text.encode()) for path, text in task.test_files.items()}), ".")
    if not task.test_patch:
        return ""
    for path in _list_touched(task.test_patch):
        where = shlex.quote(path)
        await sandbox.exec(f"git checkout -q HEAD -- {where} 2>/dev/null || rm -rf {where}")
    done = await sandbox.exec(["git", "apply", "--whitespace=nowarn", "-"], stdin=task.test_patch)
    return "" if done.ok else f"the test patch does not apply: {done.text()[-300:]}"
