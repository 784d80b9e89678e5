"""The conformance suite of backends, as library code: `agentrl check sandbox=docker`, or your own backend.

Each check verifies one requirement of `base.Sandbox`; a backend passes when none fails.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import InvalidInput, SandboxError
from agentrl.tools.sandbox.base import Outcome, PathError, Sandbox, SandboxDied
from agentrl.tools.sandbox.registry import Create, backend
from agentrl.tools.sandbox.spec import SandboxSpec

Check = Callable[[Sandbox], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class CheckedRequirement:
    """One requirement, and whether it is met."""

    requirement: str
    ok: bool
    detail: str = ""


async def check_sandbox(name: str | Create = "docker", spec: SandboxSpec | None = None) -> list[CheckedRequirement]:
    """Run every check on a backend; the sandboxes used are removed.

    Args:
        name: a backend's name, an import path, or the function that makes its sandboxes.
        spec: what the sandboxes are made of.
    """
    create = backend(name) if isinstance(name, str) else name
    spec = spec or SandboxSpec()
    sandbox = await create(spec)
    try:
        verdicts = [await _checked(check, sandbox) for check in (*CHECKS, _is_hardened)]
    finally:
        await sandbox.close()
    verdicts.append(await _checked(_is_gone, sandbox))
    return verdicts


async def _checked(check: Check, sandbox: Sandbox) -> CheckedRequirement:
    requirement = (check.__doc__ or check.__name__).strip().rstrip(".")
    try:
        await asyncio.wait_for(check(sandbox), 60.0)
    except AssertionError as error:
        return CheckedRequirement(requirement, False, str(error) or "the check failed")
    except (Exception, TimeoutError) as error:
        return CheckedRequirement(requirement, False, f"{type(error).__name__}: {error}")
    return CheckedRequirement(requirement, True)


def _expect(condition: bool, what: object) -> None:
    if not condition:
        raise AssertionError(what)


async def _runs(s: Sandbox) -> None:
    """A command's output, both kinds apart, and its exit code come back."""
    result = await s.exec("echo out; echo err >&2; exit 7")
    _expect((result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 7), result)
    _expect(result.outcome is Outcome.EXITED and not result.ok, result)


async def _argv(s: Sandbox) -> None:
    """An argument vector reaches its program unchanged."""
    result = await s.exec(["echo", "a b", "$HOME", "'\"\\"])
    _expect(result.stdout == b"a b $HOME '\"\\\n", result)


async def _environment(s: Sandbox) -> None:
    """Variables and the working directory are those requested."""
    result = await s.exec("echo $X; pwd", env={"X": "y=z"}, cwd="/")
    _expect(result.stdout == b"y=z\n/\n", result)


async def _stdin(s: Sandbox) -> None:
    """Standard input is what was given, or empty."""
    _expect((await s.exec("cat", stdin=b"\0\xff\n" * 100)).stdout == b"\0\xff\n" * 100, "input was changed")
    _expect((await s.exec("cat", timeout=10)).stdout == b"", "input without end")


async def _missing(s: Sandbox) -> None:
    """A program that is not there is the command's failure, with exit code 127."""
    result = await s.exec(["/no/such/program"])
    _expect(result.exit_code == 127 and result.outcome is Outcome.NOT_STARTED, result)


async def _times_out(s: Sandbox) -> None:
    """A timeout ends the command in time and keeps what it printed."""
    began = time.monotonic()
    result = await s.exec("echo before; sleep 60", timeout=1)
    _expect(result.outcome is Outcome.TIMEOUT and result.stdout == b"before\n", result)
    _expect(time.monotonic() - began < 20, "it took too long")


async def _bounded(s: Sandbox) -> None:
    """Long output is cut in the middle, and says so."""
    result = await s.exec("i=0; while [ $i -lt 20000 ]; do echo line-$i; i=$((i+1)); done", limit=1000)
    _expect(len(result.stdout) == 1000 and result.truncated, result)
    _expect(result.stdout.startswith(b"line-0\n") and result.stdout.endswith(b"line-19999\n"), result)


async def _concurrent(s: Sandbox) -> None:
    """Commands run side by side, each with its own output."""
    results = await asyncio.gather(*(s.exec(f"sleep 0.1; echo {i}") for i in range(8)))
    _expect([r.stdout for r in results] == [f"{i}\n".encode() for i in range(8)], results)


async def _files(s: Sandbox) -> None:
    """Files are written and read whole, whatever bytes they hold, and directories above them are made."""
    data = bytes(range(256)) * 5000
    await s.write("deep/er/file.bin", data, mode=0o755)
    _expect(await s.read("deep/er/file.bin") == data, "content differs")
    _expect(await s.read("deep/er/file.bin", offset=256, limit=3) == b"\0\1\2", "a part differs")
    _expect((await s.exec("[ -x deep/er/file.bin ]")).ok, "mode differs")


async def _no_file(s: Sandbox) -> None:
    """A file that is not there is a PathError, never a SandboxError."""
    try:
        await s.read("/no/such/file")
    except PathError as error:
        _expect(not isinstance(error, SandboxError), error)
    else:
        raise AssertionError("no error")


async def _trees(s: Sandbox) -> None:
    """Trees are uploaded and downloaded unchanged: names, modes, links, empty directories."""
    with tempfile.TemporaryDirectory() as folder:
        source, back = Path(folder) / "in", Path(folder) / "out"
        (source / "a" / ("long" * 30)).mkdir(parents=True)
        (source / "empty").mkdir()
        (source / "a" / ("long" * 30) / "f").write_bytes(b"x" * 70000)
        (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
        (source / "run.sh").chmod(0o755)
        (source / "link").symlink_to("a")
        await s.upload(source, "tree")
        _expect((await s.exec("./tree/run.sh")).stdout == b"ran\n", "not executable")
        await s.download("tree", back)
        _expect((back / "a" / ("long" * 30) / "f").read_bytes() == b"x" * 70000, "content differs")
        _expect((back / "empty").is_dir() and (back / "link").readlink() == Path("a"), "a directory or link differs")


async def _background(s: Sandbox) -> None:
    """A background process runs beside commands, and ends with everything it started when stopped."""
    process = await s.start("echo up; echo > started; sleep 300 & sleep 300")
    _expect((await s.exec("until [ -e started ]; do sleep 0.01; done", timeout=20)).ok, "it did not start")
    _expect(process.running, "it ended by itself")
    result = await process.stop()
    _expect(not process.running and result.stdout == b"up\n", result)


async def _forks(s: Sandbox) -> None:
    """A fork has the same files, and is independent of the original."""
    await s.write("mine", "before")
    other = await s.fork()
    try:
        _expect(await other.read("mine") == b"before", "the fork lacks a file")
        await other.write("mine", "after")
        _expect(await s.read("mine") == b"before", "the fork is not independent")
    finally:
        await other.close()


async def _restores(s: Sandbox) -> None:
    """A restored snapshot has the files that it was taken of, and no others."""
    await s.exec("rm -rf ./* && mkdir -p d/e && echo before > d/f && ln -s d/f l && chmod 0500 d/e")
    snapshot = await s.snapshot()
    _expect(await s.snapshot() == snapshot, "two snapshots of the same files differ")
    await s.exec("echo after > d/f; rm l; touch new")
    fresh = await s.fork()
    try:
        await fresh.restore(snapshot)
        seen = await fresh.exec("cat d/f l; ls -d new; stat -c %a d/e")
        _expect(seen.stdout == b"before\nbefore\n500\n", seen)
    except InvalidInput:
        _expect(s.spec.writable_root, "refused")  # type: ignore[attr-defined]
    finally:
        await fresh.close()
    await s.exec("chmod 0700 d/e")


async def _resets(s: Sandbox) -> None:
    """A reset removes all files and processes, and leaves a writable working directory."""
    await s.write("left", "x")
    process = await s.start("sleep 300")
    await s.exec("chmod 0500 .")
    await s.reset()
    await s.write("new", "x")
    _expect(not (await s.exec(["ls", "left"])).ok, "a file is left")
    await process.wait(10.0)


async def _health(s: Sandbox) -> None:
    """It is healthy."""
    _expect(await s.healthy(), "it does not")


async def _is_hardened(s: Sandbox) -> None:
    """The daemon's inspection matches the specification (backends with a daemon)."""
    inspect = getattr(s, "inspect", None)
    if inspect is not None:
        from agentrl.tools.sandbox.docker.hardening import audit

        missing = audit(await inspect(), s.spec)  # type: ignore[attr-defined]
        _expect(not missing, f"not kept: {', '.join(missing)}")


async def _is_gone(s: Sandbox) -> None:
    """A closed sandbox runs nothing, and closing it again does nothing."""
    await s.close()
    try:
        await s.exec("true")
    except SandboxDied:
        return
    raise AssertionError("it still runs commands")


CHECKS: tuple[Check, ...] = (
    _runs,
    _argv,
    _environment,
    _stdin,
    _missing,
    _times_out,
    _bounded,
    _concurrent,
    _files,
    _no_file,
    _trees,
    _background,
    _forks,
    _restores,
    _resets,
    _health,
)
